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
)

// inOrder returns new pods in the order in which they are to begin: those that run
// already, since they take room whatever is decided of the rest, and each group by
// creation.
func (p *PodManager) inOrder(pods []*corev1.Pod) []*corev1.Pod {
	var running, rest []*corev1.Pod
	for _, pod := range pods {
		if p.cfg.IsRunning(pod.UID) {
			running = append(running, pod)
		} else {
			rest = append(rest, pod)
		}
	}
	slices.SortStableFunc(running, byCreation)
	slices.SortStableFunc(rest, byCreation)
	return append(running, rest...)
}

func byCreation(a, b *corev1.Pod) int {
	return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.UID, b.UID))
}

// expect has the pods take room that run since before this process and that a later
// change may bring, of another source for one.
func (p *PodManager) expect() {
	if p.expected != nil {
		return
	}
	p.expected = map[types.UID]struct{}{}
	for _, pod := range p.cfg.Expected() {
		if p.cfg.IsRunning(pod.UID) {
			p.expected[pod.UID] = struct{}{}
			p.activePods.put(pod)
		}
	}
}

// stillExpected makes out anew which of them may yet come.
func (p *PodManager) stillExpected() {
	if len(p.expected) == 0 {
		return
	}
	still := map[types.UID]struct{}{}
	for _, pod := range p.cfg.Expected() {
		if _, ok := p.expected[pod.UID]; ok && p.cfg.IsRunning(pod.UID) {
			still[pod.UID] = struct{}{}
		}
	}
	p.expected = still
}

// takesRoom reports whether one of others still does.
func (p *PodManager) takesRoom(other *corev1.Pod) bool {
	if p.get(other.UID) != nil {
		st, ok := p.cfg.Workers.State(other.UID)
		return !ok || !st.Idle
	}
	_, ok := p.expected[other.UID]
	return ok
}

// admit asks the admitters. What they are told of may have ended: that is made out
// only when it would make a difference.
func (p *PodManager) admit(pod *corev1.Pod) podspec.AdmitResult {
	v := p.runAdmitters(pod)
	if v.Admitted {
		return v
	}
	if p.stillExpected(); !p.activePods.keep(p.takesRoom) {
		return v
	}
	return p.runAdmitters(pod)
}

// reasonAdmission is the reason of a pod that no admitter could judge, as the
// kubelet tells it.
const reasonAdmission = "UnexpectedAdmissionError"

func (p *PodManager) runAdmitters(pod *corev1.Pod) podspec.AdmitResult {
	for _, a := range p.cfg.Admitters {
		// What cannot be answered is refused, as a kubelet does.
		v := podspec.Rejected(reasonAdmission, "an admitter panicked")
		safe.Do(p.cfg.Logger, "admit pod "+podspec.FullName(pod), func() { v = a.Admit(pod, p.activePods.pods) })
		if !v.Admitted {
			return v
		}
	}
	return podspec.Admitted()
}

// reject makes a pod Failed. It is told once for each reason, and each time that the
// next attempt at a static pod was put off.
func (p *PodManager) reject(pod *corev1.Pod, v podspec.AdmitResult, now time.Time) {
	w := p.get(pod.UID)
	again := w != nil && w.rejected
	p.set(pod.UID, &desiredPod{pod: pod, rejected: true})
	before, told := p.cfg.Statuses.Get(pod.UID)
	same := told && before.Reason == v.Reason && before.Message == podspec.RejectedPrefix+v.Message
	if told && podspec.IsRejected(&before) && !same {
		p.cfg.Statuses.Forget(pod.UID) // what is terminal stays as it was told
	}
	p.cfg.Statuses.Reject(pod, v.Reason, v.Message)
	attrs, message := append(podAttrs(pod), slog.String("reason", v.Reason), slog.String("message", v.Message)), v.Message
	if wait, ok := p.putOff(pod, false, now); ok {
		attrs = append(attrs, slog.Duration("in", wait), slog.Time("nextAttempt", now.Add(wait)))
		message += "; " + nextAttempt(wait)
	}
	p.cfg.Logger.Warn("pod refused", attrs...)
	if p.cfg.Recorder != nil {
		p.cfg.Recorder.Record(podspec.NewEvent(pod, corev1.EventTypeWarning, v.Reason, message, now))
	}
	if h := p.cfg.Hooks.Rejected; h != nil && (!again || !same) {
		h(pod, v.Reason, v.Message)
	}
}
