package syncloop

import (
	"log/slog"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/podworkers"
	"github.com/sublet-dev/agent/runtime"
)

// start passes a pod to a worker, unless it is rejected: a finished pod, a pod whose
// eviction is resumed, a running pod that is adopted, or a new one that is admitted. An
// invalid pod that runs is left alone.
func (p *PodManager) start(pod *corev1.Pod, now time.Time) {
	u := podworkers.Update{Type: podworkers.PodCreate, Pod: pod, StartTime: now}
	p.endWaitFor(pod.UID)
	_, recreated := p.removed[pod.UID]
	wasRejected := !recreated && p.restoreRetry(pod, now)
	switch {
	case recreated:
		delete(p.removed, pod.UID)
		p.activePods.drop(pod.UID)
		p.cfg.Statuses.Forget(pod.UID)
		p.startRetry(pod.UID, now) // also of an evicted pod that is started again by request
	case !wasRejected:
		p.forgetTermination(pod)
		u.Pod, u.Kill = p.withRestoredStatus(pod), p.unfinishedEviction(pod.UID)
	}
	switch {
	case isFinished(u.Pod):
		u.Kill = nil
		p.logPod("pod already finished", pod, sourceAttr(pod), slog.String("phase", string(u.Pod.Status.Phase)))
		p.cfg.Workers.Update(u)
		return
	case u.Kill != nil:
		p.logPod("pod eviction resumed", pod, slog.String("message", u.Kill.Message))
	case !recreated && isInvalid(pod) && p.cfg.Inspector.IsRunning(pod.UID):
		p.leaveAlone(pod, now)
		return
	case !recreated && p.cfg.Inspector.IsRunning(pod.UID):
		if wasRejected {
			p.cfg.Statuses.Forget(pod.UID)
		}
		u.Pod = p.adopt(pod)
	default:
		allocated, pendingResize := p.restoreAllocation(pod)
		if v, preemption := p.decide(allocated); preemption != nil {
			p.preempt(pod, preemption, now)
			return
		} else if !v.Admitted {
			p.reject(pod, v, now)
			return
		}
		if wasRejected {
			p.cfg.Statuses.Forget(pod.UID)
		}
		p.postponeResize(allocated, pendingResize)
		u.Pod = allocated
		p.create(u)
		return
	}
	p.putActive(u.Pod)
	p.cfg.Workers.Update(u)
}

// create passes a pod that was admitted to a worker.
func (p *PodManager) create(u podworkers.Update) {
	p.logPod("pod admitted", u.Pod, sourceAttr(u.Pod))
	if h := p.cfg.Hooks.Admitted; h != nil {
		h(u.Pod)
	}
	p.activePods.put(u.Pod)
	p.cfg.Workers.Update(u)
}

// adopt returns a pod that already runs with the resources that it runs with.
func (p *PodManager) adopt(pod *corev1.Pod) *corev1.Pod {
	p.logPod("pod adopted", pod, sourceAttr(pod))
	if st, ok := p.cfg.Statuses.Get(pod.UID); ok && p.cfg.Probes != nil {
		p.cfg.Probes.Adopt(pod.UID, st)
	}
	if h := p.cfg.Hooks.Adopted; h != nil {
		h(pod)
	}
	allocated, pendingResize := p.restoreAllocation(pod)
	p.postponeResize(allocated, pendingResize)
	return allocated
}

// postponeResize stores a resize that restoreAllocation has found, if there is one.
func (p *PodManager) postponeResize(allocated, requested *corev1.Pod) {
	if requested == nil {
		return
	}
	p.pendingResizes[requested.UID] = requested
	p.set(requested.UID, &desiredPod{pod: allocated})
}

// forgetTermination drops the status of a static pod that was terminated because the node shut down, or because its source did not
// have it for a while: it starts again. Others are replaced by their controller.
func (p *PodManager) forgetTermination(pod *corev1.Pod) {
	if st, ok := p.cfg.Statuses.Get(pod.UID); ok && podspec.IsStatic(pod) && (podspec.IsShutDown(&st) || wasRemoved(pod, &st)) {
		p.cfg.Statuses.Forget(pod.UID)
	}
}

// wasRemoved reports whether a pod was terminated because its source did not have it: one whose containers always restart ends
// for no other cause without a reason.
func wasRemoved(pod *corev1.Pod, st *corev1.PodStatus) bool {
	return podspec.IsTerminalPhase(st.Phase) && st.Reason == "" && pod.Spec.RestartPolicy == corev1.RestartPolicyAlways &&
		alwaysRestart(pod.Spec.Containers) && alwaysRestart(pod.Spec.InitContainers)
}

// alwaysRestart reports whether no container has a policy of its own that differs from Always.
func alwaysRestart(containers []corev1.Container) bool {
	return !slices.ContainsFunc(containers, func(c corev1.Container) bool {
		return c.RestartPolicy != nil && *c.RestartPolicy != corev1.ContainerRestartPolicyAlways
	})
}

// isFinished reports whether the pod must not run, whatever resources the node has.
func isFinished(pod *corev1.Pod) bool {
	return pod.DeletionTimestamp != nil || podspec.IsTerminalPhase(pod.Status.Phase)
}

// unfinishedEviction returns the eviction that a previous process has reported and not
// completed. A reported eviction is completed: the pod is not started again.
func (p *PodManager) unfinishedEviction(uid types.UID) *podworkers.KillOptions {
	st, _ := p.cfg.Statuses.Get(uid)
	for i := range st.Conditions {
		c := &st.Conditions[i]
		if c.Type == corev1.DisruptionTarget && c.Status == corev1.ConditionTrue && c.Reason == corev1.PodReasonTerminationByKubelet {
			switch c.Message {
			case messagePreempted:
				return &podworkers.KillOptions{Termination: preempted()}
			case podspec.MessageNodeShutdown:
				return &podworkers.KillOptions{Termination: runtime.Termination{Reason: podspec.ReasonNodeShutdown, Message: c.Message, Evicted: true}}
			}
			return &podworkers.KillOptions{Termination: runtime.Termination{Reason: podspec.ReasonEvicted, Message: c.Message, Evicted: true}}
		}
	}
	return nil
}

// withRestoredStatus returns the pod with its stored status, if that is terminal: the
// source may not have it, and the pod must not run twice.
func (p *PodManager) withRestoredStatus(pod *corev1.Pod) *corev1.Pod {
	st, _ := p.cfg.Statuses.Get(pod.UID)
	if !podspec.IsTerminalPhase(st.Phase) {
		return pod
	}
	with := *pod
	with.Status = st
	return &with
}
