package podsource

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/podspec"
)

// HasSynced reports whether all that a source wants is known: it has told it, and
// nothing of it was beyond reading. As long as it is not, no pod found running
// that bears the source's name may be taken for unwanted; Holds says so pod by
// pod. A source that this Mux does not have, since it was taken out of the
// configuration, wants nothing: it is ready when all sources are that this Mux has.
// Only pods of one's own may be asked about here.
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

// MayBeDesired reports whether a pod found running, which bears the source's name and
// is not among Pods, must be left alone: it may be wanted by what could not be
// read yet. A pod whose full name is wanted with another UID is not held: the
// wanted one takes its place.
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

func podNamed(namespace, name string) *corev1.Pod {
	pod := &corev1.Pod{}
	pod.Namespace, pod.Name = namespace, name
	return pod
}

// of returns the sources of that name, or all if there is none.
func (m *Mux) of(source string) []*sourceState {
	for i, d := range m.sources {
		if d.source == source {
			return m.sources[i : i+1]
		}
	}
	return m.sources
}

// Pods returns the pods that are wanted now, in the order of their sources. The
// pods are shared and read-only, the slice is the caller's.
func (m *Mux) Pods() []*corev1.Pod {
	m.mu.Lock()
	want := m.merged.pods
	m.mu.Unlock()
	pods := make([]*corev1.Pod, len(want))
	for i, p := range want {
		pods[i] = p.pod
	}
	return pods
}

// Pod returns the wanted pod of that UID.
func (m *Mux) Pod(uid types.UID) (*corev1.Pod, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if p := m.merged.byUID[uid]; p != nil {
		return p.pod, true
	}
	return nil, false
}

// Errors returns all that is wrong now with what is wanted, sorted by where. The
// slice is the caller's.
func (m *Mux) Errors() []SourceError {
	m.mu.Lock()
	defer m.mu.Unlock()
	faults := make([]SourceError, 0, len(m.reported))
	for _, f := range m.reported {
		faults = append(faults, f)
	}
	slices.SortFunc(faults, func(a, b SourceError) int {
		return cmp.Or(cmp.Compare(a.Location, b.Location), a.Since.Compare(b.Since), cmp.Compare(a.Err.Error(), b.Err.Error()))
	})
	return faults
}

// Object returns the ConfigMap or Secret that ref names. It fulfils
// podspec.Objects: that there is none is only said when all sources are known to
// the end.
func (m *Mux) Object(_ context.Context, ref podspec.Ref) (podspec.Object, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if o, ok := m.merged.objects[ref]; ok {
		return o, nil
	}
	what := fmt.Sprintf("%s %s/%s", strings.ToLower(ref.Kind), ref.Namespace, ref.Name)
	for _, d := range m.sources {
		if !d.received || !d.complete {
			return podspec.Object{}, fmt.Errorf("find %s: not all that source %s has could be read yet", what, d.source)
		}
	}
	return podspec.Object{}, fmt.Errorf("find %s: %w", what, podspec.ErrObjectNotFound)
}
