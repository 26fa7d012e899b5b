package agent

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/runtime"
	"github.com/sublet-dev/agent/status"
	"github.com/sublet-dev/agent/syncloop"
)

// Pods returns the pods that this node runs, and those that have ended and are still
// desired, each with its newest status. They are read-only.
//
// A pod whose status was restored and that no source has delivered yet is returned as it
// is observed in the runtime now, with unknown readiness: it is neither restarted nor
// probed until its source has synced, and its status is not sent to sinks before.
func (a *Agent) Pods() []*corev1.Pod {
	pods := a.statuses.Pods()
	for i, pod := range pods {
		if !a.statuses.IsRestored(pod.UID) {
			continue
		}
		message := "no source has delivered the pod yet"
		for _, u := range a.mux.Unsynced() {
			if u.Source == pod.Annotations[podspec.AnnotationSource] {
				message = u.Error()
			}
		}
		var observed *runtime.Pod
		if a.ready.PodsKnown() {
			p, _ := a.cache.Get(pod.UID)
			observed = &p
		}
		pods[i] = status.Unsynced(pod, observed, message, a.nodeInfo(), time.Now())
	}
	return pods
}

// PodProblem is a desired pod that the node has rejected or evicted.
type PodProblem = syncloop.PodProblem

// PodProblems returns the desired pods that do not run because the node has rejected or
// evicted them. They leave the agent healthy: it does what it should.
func (a *Agent) PodProblems() []PodProblem { return a.pods.Problems() }
