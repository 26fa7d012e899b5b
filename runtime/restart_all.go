package runtime

import corev1 "k8s.io/api/core/v1"

// RestartAllStatus is the progress of a RestartAllContainers rule. The zero value is that
// of a pod without such a rule.
type RestartAllStatus struct {
	Configured bool // a container has such a rule
	InProgress bool // a container triggered it, and none was created since

	pending map[string]bool
}

// IsPending reports whether the container of that name has run and will be restarted by
// the rule, regardless of its own policy.
func (a RestartAllStatus) IsPending(name string) bool { return a.pending[name] }

// RestartAllStatusOf returns the progress of the pod's RestartAllContainers rules. It is
// pure, and consistent with Plan. observed must be an inspection: a listing has no exit
// codes.
func RestartAllStatusOf(pod *corev1.Pod, observed *Pod) RestartAllStatus {
	var a RestartAllStatus
	for c, kind := range ContainerSpecs(pod) {
		a.Configured = a.Configured || kind != Ephemeral && hasRestartAll(c)
	}
	if !a.Configured {
		return a
	}
	s := newScope(pod, observed, nil)
	a.InProgress = true
	for i := range observed.Containers {
		a.InProgress = a.InProgress && observed.Containers[i].RestartGeneration < s.round
	}
	a.InProgress = a.InProgress && len(observed.Containers) > 0
	a.pending = map[string]bool{}
	for c, kind := range ContainerSpecs(pod) {
		last := s.last(c.Name)
		a.pending[c.Name] = kind != Ephemeral && last != nil && (last.RestartGeneration < s.round || last.RestartGeneration > 0 && last.State == Created)
	}
	return a
}
