package syncloop

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/pleg"
	"github.com/sublet-dev/agent/podsource"
	"github.com/sublet-dev/agent/podspec"
)

// PodProblem is a desired pod that the node has rejected or evicted.
type PodProblem struct {
	Pod         *corev1.Pod // with its status; read-only
	Since       time.Time   // when the pod became Failed, as far as its status says
	NextAttempt time.Time   // not before; zero: the node does not try again
}

// Error returns what became of the pod, why, and when it is tried again.
func (p PodProblem) Error() string {
	st := &p.Pod.Status
	text := fmt.Sprintf("pod %s/%s: %s: %s", p.Pod.Namespace, p.Pod.Name, st.Reason, st.Message)
	if !p.NextAttempt.IsZero() {
		text += fmt.Sprintf(" (next attempt at %s)", p.NextAttempt.Format(time.RFC3339))
	}
	return text
}

// Problems returns the desired pods that do not run because the node has rejected or
// evicted them, by namespace and name, until they run again or are not desired any more.
// Static pods are retried; others stay Failed until their source replaces them. It may
// be called from any goroutine.
func (p *PodManager) Problems() []PodProblem {
	var problems []PodProblem
	for _, d := range p.desiredPods() {
		st, ok := p.cfg.Statuses.Get(d.pod.UID)
		if !ok || !podspec.SaysRejected(&st) && !podspec.IsEvicted(&st) {
			continue
		}
		pod := *d.pod
		pod.Status = st
		problems = append(problems, PodProblem{Pod: &pod, Since: failedAt(&st), NextAttempt: d.retryAt})
	}
	slices.SortFunc(problems, func(a, b PodProblem) int {
		return cmp.Or(cmp.Compare(a.Pod.Namespace, b.Pod.Namespace), cmp.Compare(a.Pod.Name, b.Pod.Name), cmp.Compare(a.Pod.UID, b.Pod.UID))
	})
	return problems
}

type retriedPod struct {
	pod     *corev1.Pod
	retryAt time.Time
}

// desiredPods returns the desired pods and when each is retried.
func (p *PodManager) desiredPods() []retriedPod {
	p.mu.Lock()
	defer p.mu.Unlock()
	pods := make([]retriedPod, 0, len(p.desired))
	for uid, d := range p.desired {
		r := retriedPod{pod: d.pod}
		if retry := p.retries[uid]; retry != nil {
			r.retryAt = retry.at
		}
		pods = append(pods, r)
	}
	return pods
}

// failedAt returns when a pod became Failed, as far as its status says.
func failedAt(st *corev1.PodStatus) time.Time {
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

// Problem is something that is wrong with what a node should run. It leaves the node
// healthy.
type Problem struct {
	Location string    // a file, URL or source, or a pod
	Err      error     // of a podsource.SourceError, or a PodProblem or pleg.InspectionError
	Since    time.Time // when it was first found
}

// Error returns location and error.
func (p Problem) Error() string { return p.Location + ": " + p.Err.Error() }

// Unwrap returns Err.
func (p Problem) Unwrap() error { return p.Err }

// Problems joins the errors of sources, the pods that do not run, and those that cannot be
// inspected. pods returns the pods of the node, for their names. It is pure.
func Problems(sources []podsource.SourceError, failed []PodProblem, uninspected []pleg.InspectionError, pods func() []*corev1.Pod) []Problem {
	var all []Problem
	for _, e := range sources {
		all = append(all, Problem{e.Location, e.Err, e.Since})
	}
	for _, p := range failed {
		all = append(all, Problem{podLocation(p.Pod, p.Pod.UID), p, p.Since})
	}
	if len(uninspected) == 0 {
		return all
	}
	known := map[types.UID]*corev1.Pod{}
	for _, pod := range pods() {
		known[pod.UID] = pod
	}
	for _, e := range uninspected {
		all = append(all, Problem{podLocation(known[e.UID], e.UID), e, e.Since})
	}
	return all
}

func podLocation(pod *corev1.Pod, uid types.UID) string {
	if pod == nil {
		return fmt.Sprintf("pod with UID %s", uid)
	}
	return fmt.Sprintf("pod %s/%s with UID %s", pod.Namespace, pod.Name, uid)
}
