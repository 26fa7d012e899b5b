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

// mergedSet is the desired state of all sources, with one pod per full name and UID.
// Its slices and objects are read-only once made; its other maps change in apply.
type mergedSet struct {
	pods     []*entry // in the order of sources and of their sets
	byUID    map[types.UID]*entry
	byFull   map[string]*entry
	objects  map[podspec.Ref]podspec.Object
	owner    map[string]nameClaim // of full names
	rejected []rejectedPod
	unique   bool // no name or UID is used twice
}

// nameClaim identifies the owner of a full name. It stays the same when the manifest is
// edited, which changes the UID of the pod.
type nameClaim struct {
	source, origin string
	nth            int // index among the pods of that name in the origin
}

// rejectedPod is an error of a source. For a duplicate, pod is the rejected one.
type rejectedPod struct {
	source string
	pod    *corev1.Pod
	SourceError
}

// merge merges the desired sets of sources. The previous owner of a full name keeps it
// as long as it claims it; otherwise a pod that ran before wins, one that had not ended before others, or else the first
// claim. While its source may still deliver a pod that had not ended, the others wait.
func merge(sources []*sourceState, previous map[string]nameClaim, restored restoredPods) mergedSet {
	n := 0
	for _, d := range sources {
		n += len(d.entries)
	}
	u := mergedSet{
		pods: make([]*entry, 0, n), byUID: make(map[types.UID]*entry, n), byFull: make(map[string]*entry, n),
		objects: map[podspec.Ref]podspec.Object{}, owner: make(map[string]nameClaim, n),
	}
	expected := restored.expected(sources)
	waiting := restored.waiting(sources, expected)
	contested := u.assign(sources, previous, restored.alive, waiting)
	u.place(sources, contested, waiting)
	u.unique = len(contested) == 0 && len(u.rejected) == 0 && len(expected) == 0
	u.mergeObjects(sources)
	return u
}

// apply updates the set after one source changed from previous to current. It returns
// false and changes nothing if that needs a full merge, because a name or UID is used
// twice before or after the change.
func (u *mergedSet) apply(sources []*sourceState, previous, current *sourceState) bool {
	if !u.unique {
		return false
	}
	head, tail := commonEnds(previous.entries, current.entries)
	removed, added := previous.entries[head:len(previous.entries)-tail], current.entries[head:len(current.entries)-tail]
	if !u.staysUnique(removed, added) {
		return false
	}
	for _, e := range removed {
		delete(u.byUID, e.pod.UID)
		delete(u.byFull, e.full)
		delete(u.owner, e.full)
	}
	for _, e := range added {
		u.byUID[e.pod.UID], u.byFull[e.full] = e, e
		u.owner[e.full] = nameClaim{source: e.source, origin: e.origin}
	}
	u.pods = current.entries
	if len(sources) > 1 {
		u.pods = make([]*entry, 0, len(u.byUID))
		for _, d := range sources {
			u.pods = append(u.pods, d.entries...)
		}
	}
	u.objects, u.rejected = map[podspec.Ref]podspec.Object{}, nil
	u.mergeObjects(sources)
	return true
}

// staysUnique reports whether no added pod has the UID or the full name of another pod
// once those removed are gone.
func (u *mergedSet) staysUnique(removed, added []*entry) bool {
	isRemoved := make(map[*entry]bool, len(removed))
	for _, e := range removed {
		isRemoved[e] = true
	}
	uids, names := make(map[types.UID]bool, len(added)), make(map[string]bool, len(added))
	for _, e := range added {
		uid, name := u.byUID[e.pod.UID], u.byFull[e.full]
		if uids[e.pod.UID] || names[e.full] || uid != nil && !isRemoved[uid] || name != nil && !isRemoved[name] {
			return false
		}
		uids[e.pod.UID], names[e.full] = true, true
	}
	return true
}

// assign decides which pod owns each full name and returns the names with more than
// one claim, those of waiting pods among them.
func (u *mergedSet) assign(sources []*sourceState, previous map[string]nameClaim, restored map[types.UID]bool, waiting map[*entry]*corev1.Pod) map[string]bool {
	contested := map[string]bool{}
	for _, d := range sources {
		for _, e := range d.entries {
			if _, taken := u.owner[e.full]; taken || waiting[e] != nil {
				contested[e.full] = true
			} else {
				u.owner[e.full] = nameClaim{source: d.source, origin: e.origin}
			}
		}
	}
	if len(contested) == 0 {
		return contested
	}
	kept := map[string]bool{} // names of pods that had not ended
	for _, d := range sources {
		nth := counter{}
		for _, e := range d.entries {
			if !contested[e.full] {
				continue
			}
			c := nth.claim(d, e)
			owner, owned := previous[e.full]
			alive, ran := restored[e.pod.UID]
			if waiting[e] == nil && (owner == c || !owned && ran && (alive || !kept[e.full])) {
				u.owner[e.full], kept[e.full] = c, alive
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

// place adds the owners of their names to the set and rejects all other pods. A name whose owner
// is rejected for its UID goes to the next pod that has it. Of the others, those that are deleted are added, too: they are not
// started, and who has deleted one waits for its end.
func (u *mergedSet) place(sources []*sourceState, contested map[string]bool, waiting map[*entry]*corev1.Pod) {
	type claimant struct {
		*entry
		claim nameClaim
	}
	var others, rejected []claimant
	for _, d := range sources {
		nth := counter{}
		for _, e := range d.entries {
			c := claimant{entry: e}
			if contested[e.full] {
				c.claim = nth.claim(d, e)
			}
			if contested[e.full] && u.owner[e.full] != c.claim || u.byUID[e.pod.UID] != nil {
				others = append(others, c)
				continue
			}
			u.byUID[e.pod.UID], u.byFull[e.full] = e, e
		}
	}
	for _, c := range others {
		if c.isDeleted() && u.byUID[c.pod.UID] == nil {
			u.byUID[c.pod.UID] = c.entry
			continue
		}
		if u.byFull[c.full] != nil || u.byUID[c.pod.UID] != nil || waiting[c.entry] != nil {
			rejected = append(rejected, c)
			continue
		}
		u.owner[c.full] = c.claim
		u.byUID[c.pod.UID], u.byFull[c.full] = c.entry, c.entry
	}
	for _, d := range sources {
		for _, e := range d.entries {
			if u.byUID[e.pod.UID] == e {
				u.pods = append(u.pods, e)
			}
		}
	}
	for _, c := range rejected {
		u.reject(c.entry, waiting[c.entry])
	}
}

// reject rejects a pod for another one of its name or UID, or for one of its name that may come.
func (u *mergedSet) reject(p *entry, expected *corev1.Pod) {
	same, first := "full name "+p.full, u.byFull[p.full]
	if first == nil && expected == nil {
		same, first = "UID "+string(p.pod.UID), u.byUID[p.pod.UID]
	}
	var other string
	if first != nil {
		other = fmt.Sprintf("pod %s/%s of %s", first.pod.Namespace, first.pod.Name, first.location())
	} else {
		other = fmt.Sprintf("a pod that ran before, of source %s, which has not delivered all its pods yet", expected.Annotations[podspec.AnnotationSource])
	}
	u.rejected = append(u.rejected, rejectedPod{source: p.source, pod: p.pod, SourceError: SourceError{
		Location: p.location(), Since: time.Time{},
		Err: fmt.Errorf("pod %s/%s rejected: %s already used by %s; rename or remove one", p.pod.Namespace, p.pod.Name, same, other),
	}})
}

// isDeleted reports whether someone else has given the pod its identity, and has deleted it.
func (e *entry) isDeleted() bool {
	return e.origin == "" && !podspec.IsStatic(e.pod) && e.pod.DeletionTimestamp != nil
}

func (e *entry) location() string {
	if e.origin != "" {
		return e.origin
	}
	return "source " + e.source
}

// mergeObjects merges the objects. A source may deliver an object more than once; only
// different objects of one name are an error.
func (u *mergedSet) mergeObjects(sources []*sourceState) {
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
			u.rejected = append(u.rejected, rejectedPod{source: d.source, SourceError: SourceError{
				Location: "source " + d.source,
				Err: fmt.Errorf("%s %s/%s rejected: already provided by source %s; rename or remove one",
					o.Kind, o.Namespace, o.Name, first),
			}})
		}
	}
}

// sameObject reports whether two objects of one Ref are equal.
func sameObject(a, b podspec.Object) bool {
	return a.Type == b.Type && a.Version == b.Version && maps.EqualFunc(a.Data, b.Data, bytes.Equal)
}
