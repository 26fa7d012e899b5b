package podsource

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/podspec"
)

// HasSynced reports whether a source has delivered its complete set at least once.
// Before that, a running pod of the source that is not in Pods may still be desired;
// MayBeDesired decides that for one pod. A source that is not configured any more
// desires no pods and counts as synced when all configured sources have synced.
func (m *Mux) HasSynced(source string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, d := range m.of(source) {
		if !d.received || !d.complete || len(d.reservedNames) > 0 {
			return false
		}
	}
	return true
}

// MayBeDesired reports whether a running pod of the source that is not in Pods may
// still be desired, because the source has not synced. Such a pod must not be
// terminated. If a desired pod with another UID has the full name, the result is
// false: the desired pod replaces the running one.
func (m *Mux) MayBeDesired(source, namespace, name string) bool {
	full := podspec.FullName(podNamed(namespace, name))
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, d := range m.of(source) {
		switch {
		case !d.received, d.reservedNames[full]:
			return true
		case !d.complete && m.merged.byFull[full] == nil:
			return true
		}
	}
	return false
}

// Expected returns the desired pods and those of the given ones, which a previous process
// ran, that their source may still deliver. A pod whose source syncs during the call can
// be in both. The caller owns the slice; the pods are shared and read-only.
func (m *Mux) Expected(restored []*corev1.Pod) []*corev1.Pod {
	var expected []*corev1.Pod
	for _, pod := range restored {
		if m.MayBeDesired(pod.Annotations[podspec.AnnotationSource], pod.Namespace, pod.Name) {
			expected = append(expected, pod)
		}
	}
	return append(expected, m.Pods()...) // last, so that no pod is missing
}

func podNamed(namespace, name string) *corev1.Pod {
	pod := &corev1.Pod{}
	pod.Namespace, pod.Name = namespace, name
	return pod
}

// of returns the source of that name, or all sources if there is none.
// held: m.mu
func (m *Mux) of(source string) []*sourceState {
	for i, d := range m.sources {
		if d.source == source {
			return m.sources[i : i+1]
		}
	}
	return m.sources
}

// Pods returns the desired pods in the order of their sources. The pods are shared and
// read-only; the caller owns the slice.
func (m *Mux) Pods() []*corev1.Pod {
	m.mu.Lock()
	desired := m.merged.pods
	m.mu.Unlock()
	pods := make([]*corev1.Pod, len(desired))
	for i, p := range desired {
		pods[i] = p.pod
	}
	return pods
}

// Pod returns the desired pod with that UID.
func (m *Mux) Pod(uid types.UID) (*corev1.Pod, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if p := m.merged.byUID[uid]; p != nil {
		return p.pod, true
	}
	return nil, false
}

// Errors returns all current source errors, sorted by location. The caller owns the
// slice.
func (m *Mux) Errors() []SourceError {
	m.mu.Lock()
	defer m.mu.Unlock()
	errs := make([]SourceError, 0, len(m.reported))
	for _, e := range m.reported {
		errs = append(errs, e)
	}
	slices.SortFunc(errs, func(a, b SourceError) int {
		return cmp.Or(cmp.Compare(a.Location, b.Location), a.Since.Compare(b.Since), cmp.Compare(a.Err.Error(), b.Err.Error()))
	})
	return errs
}

// Objects returns the ConfigMaps and Secrets of all sources, in no order. They are
// read-only; the caller owns the slice.
func (m *Mux) Objects() []podspec.Object {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Collect(maps.Values(m.merged.objects))
}

// Object returns the ConfigMap or Secret of that Ref. It implements podspec.Objects.
// The error is podspec.ErrObjectNotFound only if all sources that may have objects have
// synced, or if no pod of theirs needs it: pods of sources without objects get them from
// another place, and do not wait for a manifest that cannot be read.
func (m *Mux) Object(_ context.Context, ref podspec.Ref) (podspec.Object, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if o, ok := m.merged.objects[ref]; ok {
		return o, nil
	}
	object := fmt.Sprintf("%s %s/%s", strings.ToLower(ref.Kind), ref.Namespace, ref.Name)
	for _, d := range m.sources {
		if !d.podsOnly && (!d.received || !d.complete) && !m.isOfOtherPlace(ref) {
			return podspec.Object{}, fmt.Errorf("get %s: source %s has not synced yet", object, d.source)
		}
	}
	return podspec.Object{}, fmt.Errorf("get %s: %w", object, podspec.ErrObjectNotFound)
}

// isOfOtherPlace reports whether there are sources without objects, and no pod of another source
// refers to the object. An object that no pod names, as a Secret of a driver's volume, is of
// another place, too.
// held: m.mu
func (m *Mux) isOfOtherPlace(ref podspec.Ref) bool {
	found := false
	for _, d := range m.sources {
		found = found || d.podsOnly
		if !d.podsOnly && slices.ContainsFunc(d.entries, func(e *entry) bool { return slices.Contains(e.refs, ref) }) {
			return false
		}
	}
	return found
}
