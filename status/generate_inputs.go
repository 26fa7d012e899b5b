package status

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"

	"github.com/sublet-dev/agent/runtime"
)

// generateInputs are the inputs of a call of Generate that returned the previous
// status. Its only other input is the previous status, so equal inputs give the
// same result again. This is the case in most syncs of most pods.
type generateInputs struct {
	pod       *corev1.Pod
	observed  runtime.Pod
	probes    runtime.PodProbeResults
	resources runtime.ResourceStatuses
	env       NodeInfo
}

// inputs returns the inputs of a status, or nil for a pod with a failure, a
// termination or another change in progress.
func inputs(pod *corev1.Pod, r *runtime.Report, env NodeInfo) *generateInputs {
	if r.Termination != nil || r.Finished || r.Blocked != nil || len(r.Failures) > 0 {
		return nil
	}
	return &generateInputs{pod: pod, observed: r.Observed, probes: r.Probes, resources: r.Resources, env: env}
}

// equal compares read-only values by address: the same observed state is the same
// memory.
func (s *generateInputs) equal(o *generateInputs) bool {
	return s.pod == o.pod &&
		s.observed.UID == o.observed.UID && s.observed.ObservedAt.Equal(o.observed.ObservedAt) &&
		s.observed.Object == o.observed.Object && s.env.RunsPods == o.env.RunsPods &&
		sameMemory(s.observed.Sandboxes, o.observed.Sandboxes) && sameMemory(s.observed.Containers, o.observed.Containers) &&
		maps.Equal(s.probes, o.probes) &&
		sameResources(s.resources, o.resources) &&
		s.env.RuntimeName == o.env.RuntimeName && s.env.HasRecursiveReadOnlyMounts == o.env.HasRecursiveReadOnlyMounts && slices.Equal(s.env.HostIPs, o.env.HostIPs)
}

func sameResources(a, b runtime.ResourceStatuses) bool {
	return len(a) == 0 && len(b) == 0 || equality.Semantic.DeepEqual(a, b)
}

func sameMemory[T any](a, b []T) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0])
}

// unchanged returns the status for the inputs if it is known without generating it.
func (m *Manager) unchanged(in *generateInputs) (corev1.PodStatus, bool) {
	if in == nil {
		return corev1.PodStatus{}, false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	e := m.entries[in.pod.UID]
	if e == nil || e.inputs == nil || !e.unfinished || e.forgotten || e.restored || !e.inputs.equal(in) {
		return corev1.PodStatus{}, false
	}
	return *e.status, true
}
