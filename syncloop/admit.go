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
func (p *Pods) inOrder(pods []*corev1.Pod) []*corev1.Pod {
	var running, rest []*corev1.Pod
	for _, pod := range pods {
		if p.cfg.Alive(pod.UID) {
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
func (p *Pods) expect() {
	if p.expected != nil {
		return
	}
	p.expected = map[types.UID]struct{}{}
	for _, pod := range p.cfg.Expected() {
		if p.cfg.Alive(pod.UID) {
			p.expected[pod.UID] = struct{}{}
			p.others.put(pod)
		}
	}
}

// stillExpected makes out anew which of them may yet come.
func (p *Pods) stillExpected() {
	if len(p.expected) == 0 {
		return
	}
	still := map[types.UID]struct{}{}
	for _, pod := range p.cfg.Expected() {
		if _, ok := p.expected[pod.UID]; ok && p.cfg.Alive(pod.UID) {
			still[pod.UID] = struct{}{}
		}
	}
	p.expected = still
}

// takesRoom reports whether one of others still does.
func (p *Pods) takesRoom(other *corev1.Pod) bool {
	if p.get(other.UID) != nil {
		st, ok := p.cfg.Workers.State(other.UID)
		return !ok || !st.Over
	}
	_, ok := p.expected[other.UID]
	return ok
}

// admit asks the admitters. What they are told of may have ended: that is made out
// only when it would make a difference.
func (p *Pods) admit(pod *corev1.Pod) podspec.Verdict {
	v := p.ask(pod)
	if v.OK {
		return v
	}
	if p.stillExpected(); !p.others.keep(p.takesRoom) {
		return v
	}
	return p.ask(pod)
}

// reasonAdmission is the reason of a pod that no admitter could judge, as the
// kubelet tells it.
const reasonAdmission = "UnexpectedAdmissionError"

func (p *Pods) ask(pod *corev1.Pod) podspec.Verdict {
	for _, a := range p.cfg.Admit {
		// What cannot be answered is refused, as a kubelet does.
		v := podspec.Refused(reasonAdmission, "an admitter panicked")
		safe.Do(p.cfg.Logger, "admit pod "+podspec.FullName(pod), func() { v = a.Admit(pod, p.others.pods) })
		if !v.OK {
			return v
		}
	}
	return podspec.Admitted()
}

// refuse makes a pod Failed. It is told once for each reason, and each time that the
// next attempt at a static pod was put off.
func (p *Pods) refuse(pod *corev1.Pod, v podspec.Verdict, now time.Time) {
	w := p.get(pod.UID)
	again := w != nil && w.refused
	p.set(pod.UID, &wanted{pod: pod, refused: true})
	before, told := p.cfg.Statuses.Get(pod.UID)
	same := told && before.Reason == v.Reason && before.Message == podspec.RejectedPrefix+v.Message
	if told && podspec.IsRejected(&before) && !same {
		p.cfg.Statuses.Forget(pod.UID) // what is terminal stays as it was told
	}
	p.cfg.Statuses.Refuse(pod, v.Reason, v.Message)
	attrs, message := append(podAttrs(pod), slog.String("reason", v.Reason), slog.String("message", v.Message)), v.Message
	if wait, ok := p.putOff(pod, false, now); ok {
		attrs = append(attrs, slog.Duration("in", wait), slog.Time("nextAttempt", now.Add(wait)))
		message += "; " + nextAttempt(wait)
	}
	p.cfg.Logger.Warn("pod refused", attrs...)
	if p.cfg.Recorder != nil {
		p.cfg.Recorder.Record(podspec.NewEvent(pod, corev1.EventTypeWarning, v.Reason, message, now))
	}
	if h := p.cfg.Hooks.Refused; h != nil && (!again || !same) {
		h(pod, v.Reason, v.Message)
	}
}
