package syncloop

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/internal/safe"
	"github.com/sublet-dev/agent/podsource"
	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/podworkers"
)

// safely makes a call for one of several pods. If it panics, the others are handled all the same: they are not delivered
// again.
func (p *PodManager) safely(what string, pod *corev1.Pod, call func()) {
	safe.Do(p.cfg.Logger, what+": pod "+podspec.FullName(pod), call)
}

// changeOne handles one pod of a change.
func (p *PodManager) changeOne(c podsource.Change, pod *corev1.Pod, now time.Time) {
	p.logChange(c, pod)
	pod = withoutPending(pod)
	switch c.Op {
	case podsource.Remove:
		p.remove(pod.UID, now)
	case podsource.Add:
		p.add(pod, now)
	default:
		p.retryResizesBefore(pod, now)
		p.change(c.Op, pod, now)
	}
}

// victims are those of the Preemptor. If it panics, there are none, and the pod is rejected.
func (p *PodManager) victims(pod *corev1.Pod, others []*corev1.Pod) (victims []*corev1.Pod, ok bool) {
	p.safely("choose pods to preempt", pod, func() { victims, ok = p.cfg.Preemptor.Victims(pod, others, p.mayPreempt) })
	return victims, ok
}

// requeue calls Handler.HandlePodSync for one of several pods that were reported once.
func (r *runner) requeue(uid types.UID, why podworkers.RequeueReason) {
	safe.Do(r.cfg.Logger, "requeue pod "+string(uid), func() { r.cfg.Handler.HandlePodSync(uid, why) })
}
