package status

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/runtime"
)

// generateInputs is what a status was made from when making it anew gave the same again.
// Generate needs nothing else but the former status, so that from the same things
// it would go on to give the same. Most turns of most pods are like that.
type generateInputs struct {
	pod    *corev1.Pod
	seen   runtime.Pod
	probes runtime.PodProbeResults
	env    NodeInfo
}

// inputs returns what a status is made from, or nil if it is of a pod with which
// something is going on.
func inputs(pod *corev1.Pod, r *runtime.Report, env NodeInfo) *generateInputs {
	if r.Termination != nil || r.Finished || r.Blocked != nil || len(r.Failures) > 0 {
		return nil
	}
	return &generateInputs{pod: pod, seen: r.Observed, probes: r.Probes, env: env}
}

// equal compares what is read-only by where it is: the same view of a pod is the
// same memory.
func (s *generateInputs) equal(o *generateInputs) bool {
	return s.pod == o.pod &&
		s.seen.UID == o.seen.UID && s.seen.ObservedAt.Equal(o.seen.ObservedAt) &&
		sameMemory(s.seen.Sandboxes, o.seen.Sandboxes) && sameMemory(s.seen.Containers, o.seen.Containers) &&
		maps.Equal(s.probes, o.probes) &&
		s.env.RuntimeName == o.env.RuntimeName && s.env.HasRecursiveReadOnlyMounts == o.env.HasRecursiveReadOnlyMounts && slices.Equal(s.env.HostIPs, o.env.HostIPs)
}

func sameMemory[T any](a, b []T) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0])
}

// unchanged returns the status that would come of in, if that is known without
// making it.
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
