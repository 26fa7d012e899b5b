package syncloop

import (
	"cmp"
	"log/slog"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/internal/safe"
	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/podworkers"
)

// inOrder returns new pods in the order in which they start: running pods first,
// because they use resources whatever is decided about the others, and both groups by
// creation time.
func (p *PodManager) inOrder(pods []*corev1.Pod) []*corev1.Pod {
	var running, others []*corev1.Pod
	for _, pod := range pods {
		if p.cfg.Inspector.IsRunning(pod.UID) {
			running = append(running, pod)
		} else {
			others = append(others, pod)
		}
	}
	slices.SortStableFunc(running, compareCreation)
	slices.SortStableFunc(others, compareCreation)
	return append(running, others...)
}

func compareCreation(a, b *corev1.Pod) int {
	return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.UID, b.UID))
}

// loadExpected makes pods active that have run since before this process started and
// that a later change may add, from another source for example.
func (p *PodManager) loadExpected() {
	if p.expected != nil {
		return
	}
	p.expected = map[types.UID]struct{}{}
	for _, pod := range p.cfg.Expected() {
		if p.cfg.Inspector.IsRunning(pod.UID) {
			p.expected[pod.UID] = struct{}{}
			p.activePods.put(pod)
		}
	}
}

// updateExpected drops the pods that can no longer be added.
func (p *PodManager) updateExpected() {
	if len(p.expected) == 0 {
		return
	}
	still := map[types.UID]struct{}{}
	for _, pod := range p.cfg.Expected() {
		if _, ok := p.expected[pod.UID]; ok && p.cfg.Inspector.IsRunning(pod.UID) {
			still[pod.UID] = struct{}{}
		}
	}
	p.expected = still
}

// isActive reports whether one of activePods still uses resources. One that has ended does not, though its
// volumes may still be unmounted: a scheduler gives its place to another pod once it is reported as ended.
func (p *PodManager) isActive(pod *corev1.Pod) bool {
	if p.get(pod.UID) == nil {
		_, ok := p.expected[pod.UID]
		return ok
	}
	st, ok := p.cfg.Workers.State(pod.UID)
	switch {
	case !ok: // its worker is about to begin
		return true
	case st.Phase > podworkers.Terminating:
		return false
	}
	status, _ := p.cfg.Statuses.Get(pod.UID)
	return !podspec.IsTerminalPhase(status.Phase)
}

// admit calls the admitters. Pods that have ended are removed from activePods, and those that
// have shrunk are updated there, only if the pod would be rejected with them.
func (p *PodManager) admit(pod *corev1.Pod) podspec.AdmitResult {
	v := p.runAdmitters(pod, p.activePods.pods)
	if v.Admitted {
		return v
	}
	p.updateExpected()
	ended := p.activePods.keep(p.isActive)
	if p.updateShrinking() {
		p.resizesRetriedAt = time.Time{} // Revisit tries those of other pods
	} else if !ended {
		return v
	}
	return p.runAdmitters(pod, p.activePods.pods)
}

// reasonAdmission is the reason of a pod for which an admitter failed; the kubelet uses
// the same.
const reasonAdmission = "UnexpectedAdmissionError"

// runAdmitters calls the admitters. kept are pods that do not count as others and have not ended; see Reserver.
func (p *PodManager) runAdmitters(pod *corev1.Pod, others []*corev1.Pod, kept ...*corev1.Pod) podspec.AdmitResult {
	if isInvalid(pod) {
		return rejectInvalid(pod)
	}
	for _, a := range p.cfg.Admitters {
		v := podspec.Rejected(reasonAdmission, "admitter panicked") // as a kubelet does without an answer
		safe.Do(p.cfg.Logger, "admit pod "+podspec.FullName(pod), func() {
			if r, ok := a.(Reserver); ok {
				v = r.AdmitBeside(pod, others, kept)
			} else {
				v = a.Admit(pod, others)
			}
		})
		if !v.Admitted {
			return v
		}
	}
	return podspec.Admitted()
}

// reject makes a pod Failed. The hook is called once per reason and message, the event
// is emitted and the log written also with each retry of a static pod that fails.
func (p *PodManager) reject(pod *corev1.Pod, v podspec.AdmitResult, now time.Time) {
	previous := p.get(pod.UID)
	p.set(pod.UID, &desiredPod{pod: pod, rejected: true})
	status, ok := p.cfg.Statuses.Get(pod.UID)
	same := ok && status.Reason == v.Reason && status.Message == podspec.RejectedPrefix+v.Message
	if isRejected(pod, &status) && !same {
		p.cfg.Statuses.Forget(pod.UID) // a terminal status is never changed
	}
	p.cfg.Statuses.Reject(pod, v.Reason, v.Message)
	attrs, message := podAttrs(pod, sourceAttr(pod), slog.String("reason", v.Reason), slog.String("message", v.Message)), v.Message
	if backOff, ok := p.postpone(pod, false, now); ok {
		attrs = append(attrs, slog.Time("retryAt", now.Add(backOff)))
		message += "; " + nextAttempt(backOff)
	} else {
		delete(p.pendingResizes, pod.UID) // it does not run any more, and nothing would retry it
	}
	p.cfg.Logger.Warn("pod rejected", attrs...)
	if p.cfg.Recorder != nil {
		p.cfg.Recorder.Record(podspec.NewEvent(pod, corev1.EventTypeWarning, v.Reason, message, now))
	}
	if h := p.cfg.Hooks.Rejected; h != nil && (!previous.rejected || !same) {
		h(pod, v.Reason, v.Message)
	}
}
