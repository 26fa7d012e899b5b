package status

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"

	"github.com/sublet-dev/agent/internal/podinput"
	"github.com/sublet-dev/agent/runtime"
)

// generateInputs are the inputs of a call of Generate that returned the previous
// status. Its only other input is the previous status, so equal inputs give the
// same result again. This is the case in most syncs of most pods.
type generateInputs struct {
	pod       podinput.Input
	resources runtime.ResourceStatuses
	env       NodeInfo
}

// inTransition reports whether a pod has a failure, a termination or another change in
// progress. Its status depends on more than the inputs that are compared.
func inTransition(r *runtime.Report) bool {
	return r.Termination != nil || r.Finished || r.Unreleased || r.Blocked != nil || len(r.Failures) > 0
}

// inputs returns the inputs of a status, or nil for a pod in transition.
func inputs(pod *corev1.Pod, r *runtime.Report, env NodeInfo) *generateInputs {
	if inTransition(r) {
		return nil
	}
	return &generateInputs{pod: podinput.Of(pod, &r.Observed, r.Probes), resources: r.Resources, env: env}
}

// equal reports whether the inputs of the status would be the same now.
func (s *generateInputs) equal(pod *corev1.Pod, r *runtime.Report, env NodeInfo) bool {
	return !inTransition(r) && s.pod.Equal(pod, &r.Observed, r.Probes) && sameResources(s.resources, r.Resources) &&
		s.env.RunsPods == env.RunsPods && s.env.RuntimeName == env.RuntimeName &&
		slices.Equal(s.env.Handlers, env.Handlers) && slices.Equal(s.env.HostIPs, env.HostIPs)
}

func sameResources(a, b runtime.ResourceStatuses) bool {
	return len(a) == 0 && len(b) == 0 || equality.Semantic.DeepEqual(a, b)
}

// unchanged returns the status for the inputs if it is known without generating it.
func (m *Manager) unchanged(pod *corev1.Pod, r *runtime.Report, env NodeInfo) (corev1.PodStatus, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	e := m.entries[pod.UID]
	if e == nil || e.inputs == nil || !e.unfinished || e.forgotten || e.restored || !e.inputs.equal(pod, r, env) {
		return corev1.PodStatus{}, false
	}
	return *e.status, true
}
