package agent

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/podspec"
)

// PodProblem is a pod that is wanted here, and that the node has rejected or evicted.
type PodProblem struct {
	Pod         *corev1.Pod // with its status; read-only
	Since       time.Time
	NextAttempt time.Time // not before; zero: the node does not try again
}

// Error says what became of the pod, why, and when it is tried again.
func (p PodProblem) Error() string {
	st := &p.Pod.Status
	text := fmt.Sprintf("pod %s/%s: %s: %s", p.Pod.Namespace, p.Pod.Name, st.Reason, st.Message)
	if !p.NextAttempt.IsZero() {
		text += fmt.Sprintf(" (next attempt at %s)", p.NextAttempt.Format(time.RFC3339))
	}
	return text
}

// PodProblems returns the wanted pods that do not run because the node has rejected or
// evicted them, by namespace and name, until they run again or are not wanted any more.
// Static pods are tried again by themselves; others stay Failed until their source
// replaces them. They leave the agent healthy: it does what it should.
func (a *Agent) PodProblems() []PodProblem {
	next := map[types.UID]time.Time{}
	for _, r := range a.pods.Retries() {
		next[r.UID] = r.At
	}
	var problems []PodProblem
	for _, pod := range a.statuses.Pods() {
		if _, desired := a.mux.Pod(pod.UID); !desired || !podspec.IsRejected(&pod.Status) && !podspec.IsEvicted(&pod.Status) {
			continue
		}
		problems = append(problems, PodProblem{Pod: pod, Since: endedAt(&pod.Status), NextAttempt: next[pod.UID]})
	}
	slices.SortFunc(problems, func(a, b PodProblem) int {
		return cmp.Or(cmp.Compare(a.Pod.Namespace, b.Pod.Namespace), cmp.Compare(a.Pod.Name, b.Pod.Name), cmp.Compare(a.Pod.UID, b.Pod.UID))
	})
	return problems
}

// endedAt is when a pod became Failed, as far as its status tells.
func endedAt(st *corev1.PodStatus) time.Time {
	for i := range st.Conditions {
		if c := &st.Conditions[i]; c.Type == corev1.PodReady {
			return c.LastTransitionTime.Time
		}
	}
	if st.StartTime != nil {
		return st.StartTime.Time
	}
	return time.Time{}
}
