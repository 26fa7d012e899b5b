package podsource

import (
	"bytes"
	"fmt"
	"maps"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/podspec"
)

// mergedSet is what all sources want together: one pod a full name and a UID. Its
// slices and objects are read-only once made, its other maps belong to its owner.
type mergedSet struct {
	pods    []*entry // in the order of sources and of what they hand over
	byUID   map[types.UID]*entry
	byFull  map[string]*entry
	objects map[podspec.Ref]podspec.Object
	owner   map[string]nameClaim // of full names
	faults  []rejectedPod
	plain   bool // no pod stands back for another
}

// nameClaim is what a full name belongs to. It outlives edits of the pod, whose UID
// changes with them.
type nameClaim struct {
	source, origin string
	nth            int // of the pods of that name in the origin
}

// rejectedPod is a fault of a pod or object that has to stand back for another.
type rejectedPod struct {
	source string
	pod    *corev1.Pod // the refused one
	SourceError
}

// merge puts together what sources want. Who had a full name before keeps it for
// as long as it claims it; then it goes to the first that does.
func merge(sources []*sourceState, before map[string]nameClaim) mergedSet {
	n := 0
	for _, d := range sources {
		n += len(d.entries)
	}
	u := mergedSet{
		pods: make([]*entry, 0, n), byUID: make(map[types.UID]*entry, n), byFull: make(map[string]*entry, n),
		objects: map[podspec.Ref]podspec.Object{}, owner: make(map[string]nameClaim, n),
	}
	contested := u.assign(sources, before)
	u.place(sources, contested)
	u.plain = len(contested) == 0 && len(u.faults) == 0
	u.gather(sources)
	return u
}

// follow makes of the union of what sources wanted the one of what they want, one
// of which wanted was before. It reports false, and has changed nothing, where that
// cannot be done by looking at what came and went alone: where a pod stands back for
// another, or would.
func (u *mergedSet) follow(sources []*sourceState, was, is *sourceState) bool {
	if !u.plain {
		return false
	}
	head, tail := commonEnds(was.entries, is.entries)
	went, came := was.entries[head:len(was.entries)-tail], is.entries[head:len(is.entries)-tail]
	if !u.fits(went, came) {
		return false
	}
	for _, e := range went {
		delete(u.byUID, e.pod.UID)
		delete(u.byFull, e.full)
		delete(u.owner, e.full)
	}
	for _, e := range came {
		u.byUID[e.pod.UID], u.byFull[e.full] = e, e
		u.owner[e.full] = nameClaim{source: e.source, origin: e.origin}
	}
	u.pods = is.entries
	if len(sources) > 1 {
		u.pods = make([]*entry, 0, len(u.byUID))
		for _, d := range sources {
			u.pods = append(u.pods, d.entries...)
		}
	}
	u.objects, u.faults = map[podspec.Ref]podspec.Object{}, nil
	u.gather(sources)
	return true
}

// fits reports whether no pod of those that came has the UID or the full name of
// another, when some went.
func (u *mergedSet) fits(went, came []*entry) bool {
	gone := make(map[*entry]bool, len(went))
	for _, e := range went {
		gone[e] = true
	}
	uids, names := make(map[types.UID]bool, len(came)), make(map[string]bool, len(came))
	for _, e := range came {
		uid, name := u.byUID[e.pod.UID], u.byFull[e.full]
		if uids[e.pod.UID] || names[e.full] || uid != nil && !gone[uid] || name != nil && !gone[name] {
			return false
		}
		uids[e.pod.UID], names[e.full] = true, true
	}
	return true
}

// assign decides who owns each full name, and returns those that several claim.
func (u *mergedSet) assign(sources []*sourceState, before map[string]nameClaim) map[string]bool {
	contested := map[string]bool{}
	for _, d := range sources {
		for _, e := range d.entries {
			if _, taken := u.owner[e.full]; taken {
				contested[e.full] = true
			} else {
				u.owner[e.full] = nameClaim{source: d.source, origin: e.origin}
			}
		}
	}
	if len(contested) == 0 {
		return contested
	}
	for _, d := range sources {
		nth := counter{}
		for _, e := range d.entries {
			if !contested[e.full] {
				continue
			}
			if c := nth.claim(d, e); before[e.full] == c {
				u.owner[e.full] = c
			}
		}
	}
	return contested
}

// counter numbers the pods of one full name in one origin.
type counter map[[2]string]int

func (c counter) claim(d *sourceState, e *entry) nameClaim {
	key := [2]string{e.origin, e.full}
	n := c[key]
	c[key] = n + 1
	return nameClaim{source: d.source, origin: e.origin, nth: n}
}

func (u *mergedSet) place(sources []*sourceState, contested map[string]bool) {
	var refused []*entry
	for _, d := range sources {
		nth := counter{}
		for _, e := range d.entries {
			if contested[e.full] && u.owner[e.full] != nth.claim(d, e) || u.byUID[e.pod.UID] != nil {
				refused = append(refused, e)
				continue
			}
			u.pods = append(u.pods, e)
			u.byUID[e.pod.UID], u.byFull[e.full] = e, e
		}
	}
	for _, e := range refused {
		u.refuse(e)
	}
}

func (u *mergedSet) refuse(p *entry) {
	same, first := "full name "+p.full, u.byFull[p.full]
	if first == nil {
		same, first = "UID "+string(p.pod.UID), u.byUID[p.pod.UID]
	}
	u.faults = append(u.faults, rejectedPod{source: p.source, pod: p.pod, SourceError: SourceError{
		Location: p.where(), Since: time.Time{},
		Err: fmt.Errorf("pod %s/%s is refused: pod %s/%s of %s has the %s already and stays; rename or remove one",
			p.pod.Namespace, p.pod.Name, first.pod.Namespace, first.pod.Name, first.where(), same),
	}})
}

func (e *entry) where() string {
	if e.origin != "" {
		return e.origin
	}
	return "source " + e.source
}

// gather finds the objects. A source that finds them by the pods that use them may
// name one more than once; only two that differ are a fault.
func (u *mergedSet) gather(sources []*sourceState) {
	from := map[podspec.Ref]string{}
	for _, d := range sources {
		for _, o := range d.objects {
			first, taken := from[o.Ref]
			if !taken {
				u.objects[o.Ref], from[o.Ref] = o, d.source
				continue
			}
			if first == d.source && sameObject(u.objects[o.Ref], o) {
				continue
			}
			u.faults = append(u.faults, rejectedPod{source: d.source, SourceError: SourceError{
				Location: "source " + d.source,
				Err: fmt.Errorf("%s %s/%s is of source %s already, which stays; rename or remove one",
					o.Kind, o.Namespace, o.Name, first),
			}})
		}
	}
}

// sameObject reports whether two objects of one Ref are one.
func sameObject(a, b podspec.Object) bool {
	return a.Type == b.Type && a.Version == b.Version && maps.EqualFunc(a.Data, b.Data, bytes.Equal)
}
