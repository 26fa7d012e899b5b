package runtime

import corev1 "k8s.io/api/core/v1"

// AllAgain says where a pod stands that one of its restart rules starts anew as a
// whole. The zero value is that of a pod without such a rule.
type AllAgain struct {
	Possible bool // a container has such a rule
	UnderWay bool // a container ended by it, and none was made since

	pending map[string]bool
}

// Pending reports whether the container of that name has run and is to run again
// for a rule, whatever its own policy says.
func (a AllAgain) Pending(name string) bool { return a.pending[name] }

// RestartOfAll returns where pod stands with its rules to restart all containers.
// It is pure, and agrees with Plan. seen must be an inspection: a listing does not
// tell exit codes.
func RestartOfAll(pod *corev1.Pod, seen *Pod) AllAgain {
	var a AllAgain
	for c, kind := range Specs(pod) {
		a.Possible = a.Possible || kind != Ephemeral && hasRestartAll(c)
	}
	if !a.Possible {
		return a
	}
	s := newScope(pod, seen, nil)
	a.UnderWay = true
	for i := range seen.Containers {
		a.UnderWay = a.UnderWay && seen.Containers[i].Round < s.round
	}
	a.UnderWay = a.UnderWay && len(seen.Containers) > 0
	a.pending = map[string]bool{}
	for c, kind := range Specs(pod) {
		last := s.last(c.Name)
		a.pending[c.Name] = kind != Ephemeral && last != nil && (last.Round < s.round || last.Round > 0 && last.State == Created)
	}
	return a
}
