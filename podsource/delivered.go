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

// delivered is the state that the reader of changes has received.
type delivered struct {
	pods    map[types.UID]*entry
	objects map[podspec.Ref]podspec.Object

	// Only pods that differ from base, the desired pods when all changes had been
	// delivered for the last time, and those delivered since are compared.
	base    []*entry
	changed []*entry // delivered since
}

// pendingChange is a change to deliver, with its entries.
type pendingChange struct {
	Change
	entries []*entry
	objects map[podspec.Ref]podspec.Object // Refresh only
}

// next returns the next change that leads to the desired state, or false if there is
// none. Entries that replace an equal pod are recorded without a change.
func (l *delivered) next(desired *mergedSet) (pendingChange, bool) {
	head, tail := commonEnds(l.base, desired.pods)
	if s, ok := l.removed(desired, l.base[head:len(l.base)-tail]); ok {
		return s, true
	}
	// One change per Op, for the first source that has one. Deletions come before
	// additions, because they release resources.
	var found [Refresh]pendingChange
	for _, p := range l.candidates(desired, desired.pods[head:len(desired.pods)-tail]) {
		previous := l.pods[p.pod.UID]
		if previous != nil && previous.pod == p.pod && previous.source == p.source {
			continue
		}
		op := Add
		if previous != nil {
			var differs bool
			if op, differs = difference(previous, p); !differs {
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
			return s.withPods(), true
		}
	}
	l.base, l.changed = desired.pods, nil
	return l.refreshed(desired)
}

// candidates returns the desired pods that may differ from the delivered ones: those
// that differ from base, and those delivered since.
func (l *delivered) candidates(desired *mergedSet, differ []*entry) []*entry {
	if len(l.changed) == 0 {
		return differ
	}
	in := make(map[*entry]bool, len(differ))
	for _, p := range differ {
		in[p] = true
	}
	pods := slices.Clip(differ)
	for _, e := range l.changed {
		if p := desired.byUID[e.pod.UID]; p != nil && !in[p] {
			in[p] = true
			pods = append(pods, p)
		}
	}
	return pods
}

// withPods returns the change with the pods of its entries.
func (s *pendingChange) withPods() pendingChange {
	s.Pods = make([]*corev1.Pod, len(s.entries))
	for i, p := range s.entries {
		s.Pods[i] = p.pod
	}
	return *s
}

// removed returns the delivered pods of one source that are not desired any more, among
// those that differ from base and those delivered since.
func (l *delivered) removed(desired *mergedSet, differ []*entry) (pendingChange, bool) {
	s := pendingChange{Change: Change{Op: Remove}}
	for _, p := range slices.Concat(differ, l.changed) {
		uid := p.pod.UID
		if p = l.pods[uid]; p == nil || desired.byUID[uid] != nil {
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
	return s.withPods(), len(s.entries) > 0
}

// refreshed returns the pods that use changed objects. It is called after all pods have
// been delivered.
func (l *delivered) refreshed(desired *mergedSet) (pendingChange, bool) {
	changed := map[podspec.Ref]bool{}
	for ref, o := range desired.objects {
		if previous, ok := l.objects[ref]; !ok || previous.Version != o.Version || previous.Type != o.Type {
			changed[ref] = true
		}
	}
	for ref := range l.objects {
		if _, ok := desired.objects[ref]; !ok {
			changed[ref] = true
		}
	}
	if len(changed) == 0 {
		return pendingChange{}, false
	}
	s := pendingChange{Change: Change{Op: Refresh}, objects: desired.objects}
	for _, p := range desired.pods {
		if !uses(p, changed) {
			continue
		}
		if len(s.entries) == 0 {
			s.Source = p.source
		}
		s.entries = append(s.entries, p)
	}
	if len(s.entries) == 0 {
		l.objects = desired.objects
		return pendingChange{}, false
	}
	return s.withPods(), true
}

func uses(p *entry, changed map[podspec.Ref]bool) bool {
	for _, ref := range p.refs {
		if changed[ref] {
			return true
		}
	}
	return false
}

// add records that a change was delivered.
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
	if len(l.changed) > 2*len(l.pods)+64 { // changes arrive faster than they are delivered
		l.base, l.changed = nil, slices.Collect(maps.Values(l.pods))
	}
}

// difference returns the Op that leads from one version of a pod to the next, and
// false if no Op is needed.
func difference(previous, current *entry) (Op, bool) {
	a, b := previous.pod, current.pod
	switch {
	case hasSameDesiredState(a, b) && previous.source == current.source:
		return Reconcile, !equality.Semantic.DeepEqual(&a.Status, &b.Status)
	case b.DeletionTimestamp != nil && !sameDeletion(a, b):
		return Delete, true
	}
	return Update, true
}

// hasSameDesiredState reports whether two versions of a pod differ at most in status.
func hasSameDesiredState(a, b *corev1.Pod) bool {
	return sameDeletion(a, b) &&
		equality.Semantic.DeepEqual(a.Labels, b.Labels) && hasSameMetadata(a.Annotations, b.Annotations) &&
		equality.Semantic.DeepEqual(&a.Spec, &b.Spec)
}

func sameDeletion(a, b *corev1.Pod) bool {
	return a.DeletionTimestamp.Equal(b.DeletionTimestamp) &&
		equality.Semantic.DeepEqual(a.DeletionGracePeriodSeconds, b.DeletionGracePeriodSeconds)
}

// hasSameMetadata compares annotations except podspec.AnnotationFirstSeen.
func hasSameMetadata(a, b map[string]string) bool {
	if a[podspec.AnnotationFirstSeen] == b[podspec.AnnotationFirstSeen] {
		return maps.Equal(a, b)
	}
	a, b = maps.Clone(a), maps.Clone(b)
	delete(a, podspec.AnnotationFirstSeen)
	delete(b, podspec.AnnotationFirstSeen)
	return maps.Equal(a, b)
}

// equal reports whether two versions of a pod are equal.
func equal(a, b *corev1.Pod) bool { return equality.Semantic.DeepEqual(a, b) }
