package podsource

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/sublet-dev/agent/podspec"
)

// set returns what the files stand for now, in the order of their names.
func (s *scan) set() Set {
	var out Set
	for _, name := range slices.Sorted(maps.Keys(s.files)) {
		m := s.files[name]
		where := s.where(name)
		for _, pod := range m.pods {
			out.Pods = append(out.Pods, Manifest{Pod: pod, Origin: where})
		}
		for _, o := range m.objects {
			if s.owner[o.Ref] == name {
				out.Objects = append(out.Objects, o)
			}
		}
		if m.fault != nil {
			fault := *m.fault
			fault.RetainedPod = m.only()
			out.Errors = append(out.Errors, fault)
		}
	}
	if s.fault != nil {
		out.Errors = append(out.Errors, *s.fault)
	}
	out.Errors = append(out.Errors, s.duplicates...)
	out.Incomplete = !s.complete
	return out
}

// shareObjects finds for each object the one file that it is taken from: the
// first that had it keeps it.
func (s *scan) shareObjects(now time.Time) {
	former := s.duplicates
	s.duplicates = nil
	has := make(map[podspec.Ref][]string)
	for _, name := range slices.Sorted(maps.Keys(s.files)) {
		for _, o := range s.files[name].objects {
			has[o.Ref] = append(has[o.Ref], name)
		}
	}
	owner := make(map[podspec.Ref]string, len(has))
	for ref, names := range has {
		owner[ref] = names[0]
		if slices.Contains(names, s.owner[ref]) {
			owner[ref] = s.owner[ref]
		}
	}
	s.owner = owner
	for _, name := range slices.Sorted(maps.Keys(s.files)) {
		for i, o := range s.files[name].objects {
			again := slices.ContainsFunc(s.files[name].objects[:i], func(b podspec.Object) bool { return b.Ref == o.Ref })
			if s.owner[o.Ref] == name && !again {
				continue
			}
			s.duplicates = append(s.duplicates, SourceError{Location: s.where(name), Since: now, Err: fmt.Errorf(
				"%s %s/%s is in %s too, which stays; rename or remove one",
				o.Kind, o.Namespace, o.Name, s.where(s.owner[o.Ref]))})
		}
	}
	sameSince(s.duplicates, former)
}

// sameSince gives faults that stood before the time at which they began.
func sameSince(now, former []SourceError) {
	for i := range now {
		for j := range former {
			if now[i].Error() == former[j].Error() {
				now[i].Since = former[j].Since
			}
		}
	}
}
