package podsource

import (
	"cmp"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/podspec"
)

// delivered is what the reader of changes was told.
type delivered struct {
	pods    map[types.UID]*entry
	objects map[podspec.Ref]podspec.Object

	// A change of a few pods among many is found by looking at a few: at those in
	// which what is wanted differs from what was when all of it was told, and at
	// what was told since.
	base    []*entry // what was wanted then
	changed []*entry
}

// pendingChange is a change, and what will have been told with it.
type pendingChange struct {
	Change
	entries []*entry
	objects map[podspec.Ref]podspec.Object // Refresh only
}

// next returns the first change on the way to what is wanted, and false if there
// is none. What was wanted before in the same words is not told again, but taken
// note of.
func (l *delivered) next(want *mergedSet) (pendingChange, bool) {
	head, tail := commonEnds(l.base, want.pods)
	if s, ok := l.removed(want, l.base[head:len(l.base)-tail]); ok {
		return s, true
	}
	// By Op; the first source of each that has something. Deletions come before
	// additions: they free what an addition may need.
	var found [Refresh]pendingChange
	for _, p := range l.open(want, want.pods[head:len(want.pods)-tail]) {
		told := l.pods[p.pod.UID]
		if told != nil && told.pod == p.pod && told.source == p.source {
			continue
		}
		op := Add
		if told != nil {
			var differs bool
			if op, differs = difference(told, p); !differs {
				l.pods[p.pod.UID] = p
				continue
			}
		}
		s := &found[op]
		if len(s.entries) == 0 {
			s.Op, s.Source = op, p.source
		}
		if s.Source == p.source {
			s.entries = append(s.entries, p)
		}
	}
	for _, op := range []Op{Delete, Add, Update, Reconcile} {
		if s := &found[op]; len(s.entries) > 0 {
			return s.fill(), true
		}
	}
	l.base, l.changed = want.pods, nil
	return l.refreshed(want)
}

// open returns the pods that may have to be told of: those that are wanted in other
// places or words than when all was told, and what became of those told since.
func (l *delivered) open(want *mergedSet, differ []*entry) []*entry {
	if len(l.changed) == 0 {
		return differ
	}
	in := make(map[*entry]bool, len(differ))
	for _, p := range differ {
		in[p] = true
	}
	pods := slices.Clip(differ)
	for _, told := range l.changed {
		if p := want.byUID[told.pod.UID]; p != nil && !in[p] {
			in[p] = true
			pods = append(pods, p)
		}
	}
	return pods
}

func (s *pendingChange) fill() pendingChange {
	s.Pods = make([]*corev1.Pod, len(s.entries))
	for i, p := range s.entries {
		s.Pods[i] = p.pod
	}
	return *s
}

// removed finds the pods that are not wanted any more, among those that were when all
// was told, and do not stand where they stood, and those told since.
func (l *delivered) removed(want *mergedSet, differ []*entry) (pendingChange, bool) {
	s := pendingChange{Change: Change{Op: Remove}}
	for _, p := range slices.Concat(differ, l.changed) {
		uid := p.pod.UID
		if p = l.pods[uid]; p == nil || want.byUID[uid] != nil {
			continue
		}
		if len(s.entries) == 0 {
			s.Source = p.source
		}
		if s.Source == p.source {
			s.entries = append(s.entries, p)
		}
	}
	slices.SortFunc(s.entries, func(a, b *entry) int { return cmp.Or(cmp.Compare(a.full, b.full), cmp.Compare(a.pod.UID, b.pod.UID)) })
	s.entries = slices.Compact(s.entries)
	return s.fill(), len(s.entries) > 0
}

// refreshed finds the pods that use what changed. It comes last, when all wanted
// pods have been told.
func (l *delivered) refreshed(want *mergedSet) (pendingChange, bool) {
	changed := map[podspec.Ref]bool{}
	for ref, o := range want.objects {
		if was, ok := l.objects[ref]; !ok || was.Version != o.Version || was.Type != o.Type {
			changed[ref] = true
		}
	}
	for ref := range l.objects {
		if _, ok := want.objects[ref]; !ok {
			changed[ref] = true
		}
	}
	if len(changed) == 0 {
		return pendingChange{}, false
	}
	s := pendingChange{Change: Change{Op: Refresh}, objects: want.objects}
	for _, p := range want.pods {
		if !uses(p, changed) {
			continue
		}
		if len(s.entries) == 0 {
			s.Source = p.source
		}
		s.entries = append(s.entries, p)
	}
	if len(s.entries) == 0 {
		l.objects = want.objects
		return pendingChange{}, false
	}
	return s.fill(), true
}

func uses(p *entry, changed map[podspec.Ref]bool) bool {
	for _, ref := range p.refs {
		if changed[ref] {
			return true
		}
	}
	return false
}

// add notes that a step was told.
func (l *delivered) add(s pendingChange) {
	if s.Op == Refresh {
		l.objects = s.objects
		return
	}
	for _, p := range s.entries {
		if s.Op == Remove {
			delete(l.pods, p.pod.UID)
		} else {
			l.pods[p.pod.UID] = p
		}
	}
	l.changed = append(l.changed, s.entries...)
	if len(l.changed) > 2*len(l.pods)+64 { // what is wanted changes faster than it is told
		l.base, l.changed = nil, slices.Collect(maps.Values(l.pods))
	}
}

// difference says what changed from one version of a pod to the next, and
// whether anything did that matters to one who runs it.
func difference(was, is *entry) (Op, bool) {
	a, b := was.pod, is.pod
	switch {
	case hasSameDesiredState(a, b) && was.source == is.source:
		return Reconcile, !equality.Semantic.DeepEqual(&a.Status, &b.Status)
	case b.DeletionTimestamp != nil && !sameDeletion(a, b):
		return Delete, true
	}
	return Update, true
}

// hasSameDesiredState reports whether two versions of a pod ask for the same.
func hasSameDesiredState(a, b *corev1.Pod) bool {
	return sameDeletion(a, b) &&
		equality.Semantic.DeepEqual(a.Labels, b.Labels) && hasSameMetadata(a.Annotations, b.Annotations) &&
		equality.Semantic.DeepEqual(&a.Spec, &b.Spec)
}

func sameDeletion(a, b *corev1.Pod) bool {
	return a.DeletionTimestamp.Equal(b.DeletionTimestamp) &&
		equality.Semantic.DeepEqual(a.DeletionGracePeriodSeconds, b.DeletionGracePeriodSeconds)
}

// hasSameMetadata compares annotations but for when the pod was first seen.
func hasSameMetadata(a, b map[string]string) bool {
	if a[podspec.AnnotationFirstSeen] == b[podspec.AnnotationFirstSeen] {
		return maps.Equal(a, b)
	}
	a, b = maps.Clone(a), maps.Clone(b)
	delete(a, podspec.AnnotationFirstSeen)
	delete(b, podspec.AnnotationFirstSeen)
	return maps.Equal(a, b)
}

// equal reports whether two versions of a pod are the same throughout.
func equal(a, b *corev1.Pod) bool { return equality.Semantic.DeepEqual(a, b) }
