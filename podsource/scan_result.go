package podsource

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/sublet-dev/agent/podspec"
)

// set returns the content of all files, in the order of their names.
func (s *scan) set() Set {
	var out Set
	for _, name := range slices.Sorted(maps.Keys(s.files)) {
		m := s.files[name]
		location := s.pathOf(name)
		for _, pod := range m.pods {
			out.Pods = append(out.Pods, Manifest{Pod: pod, Origin: location})
		}
		for _, o := range m.objects {
			if s.owner[o.Ref] == name {
				out.Objects = append(out.Objects, o)
			}
		}
		if m.err != nil {
			e := *m.err
			e.RetainedPod = m.onlyRetained()
			out.Errors = append(out.Errors, e)
		}
	}
	if s.dirErr != nil {
		out.Errors = append(out.Errors, *s.dirErr)
	}
	out.Errors = append(out.Errors, s.duplicates...)
	out.Incomplete = !s.complete
	return out
}

// assignObjects decides which file each object is taken from. The file that had it first
// keeps it.
func (s *scan) assignObjects(now time.Time) {
	previous := s.duplicates
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
		used := make(map[podspec.Ref]bool)
		for _, o := range s.files[name].objects {
			if s.owner[o.Ref] == name && !used[o.Ref] {
				used[o.Ref] = true
				continue
			}
			s.duplicates = append(s.duplicates, SourceError{Location: s.pathOf(name), Since: now, Err: fmt.Errorf(
				"%s %s/%s rejected: already defined in %s; rename or remove one",
				o.Kind, o.Namespace, o.Name, s.pathOf(s.owner[o.Ref]))})
		}
	}
	keepSince(s.duplicates, previous)
}

// keepSince copies Since from equal previous errors.
func keepSince(now, previous []SourceError) {
	if len(previous) == 0 {
		return
	}
	since := make(map[string]time.Time, len(previous))
	for _, e := range previous {
		since[e.Error()] = e.Since
	}
	for i := range now {
		if at, ok := since[now[i].Error()]; ok {
			now[i].Since = at
		}
	}
}
