package runtime

import corev1 "k8s.io/api/core/v1"

// RestartAllStatus says where a pod stands that one of its restart rules starts anew as a
// whole. The zero value is that of a pod without such a rule.
type RestartAllStatus struct {
	Configured bool // a container has such a rule
	InProgress bool // a container ended by it, and none was made since

	pending map[string]bool
}

// IsPending reports whether the container of that name has run and is to run again
// for a rule, whatever its own policy says.
func (a RestartAllStatus) IsPending(name string) bool { return a.pending[name] }

// RestartAllStatusOf returns where pod stands with its rules to restart all containers.
// It is pure, and agrees with Plan. seen must be an inspection: a listing does not
// tell exit codes.
func RestartAllStatusOf(pod *corev1.Pod, seen *Pod) RestartAllStatus {
	var a RestartAllStatus
	for c, kind := range ContainerSpecs(pod) {
		a.Configured = a.Configured || kind != Ephemeral && hasRestartAll(c)
	}
	if !a.Configured {
		return a
	}
	s := newScope(pod, seen, nil)
	a.InProgress = true
	for i := range seen.Containers {
		a.InProgress = a.InProgress && seen.Containers[i].RestartGeneration < s.round
	}
	a.InProgress = a.InProgress && len(seen.Containers) > 0
	a.pending = map[string]bool{}
	for c, kind := range ContainerSpecs(pod) {
		last := s.last(c.Name)
		a.pending[c.Name] = kind != Ephemeral && last != nil && (last.RestartGeneration < s.round || last.RestartGeneration > 0 && last.State == Created)
	}
	return a
}
