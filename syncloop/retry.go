package syncloop

import (
	"fmt"
	"log/slog"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/podsource"
	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/podworkers"
	"github.com/sublet-dev/agent/runtime"
)

// No controller replaces a static pod that the node has rejected or evicted, so the
// agent retries it. A rejected pod is retried when pods change or finish, and with
// back-off, because the result of an admitter can depend on other things. An evicted pod
// is retried with back-off only, and not under pressure, because its start may cause the
// pressure.

const (
	firstRetry = 10 * time.Second
	maxRetry   = 5 * time.Minute
	// retryReset is how long a pod must run until its next eviction counts as the first.
	retryReset = 2 * maxRetry
	// overdueRetry is the time between checks of pods that are due and still have to wait.
	overdueRetry = 10 * time.Second
	// reasonBackOff is the reason of events about the next retry.
	reasonBackOff = "BackOff"
)

// retry is the retry state of a static pod that was rejected or evicted. It is kept
// while the pod runs again.
type retry struct {
	evicted  bool      // otherwise rejected
	failures int       // evictions or rejections in a row
	at       time.Time // when the pod is retried; zero: it runs or is about to
	lastAt   time.Time // when the pod was retried last
}

// postpone plans the next retry of a static pod and returns the back-off until then. ok
// is false for a pod that is not retried.
func (p *PodManager) postpone(pod *corev1.Pod, evicted bool, now time.Time) (backOff time.Duration, ok bool) {
	if !podspec.IsStatic(pod) || pod.DeletionTimestamp != nil {
		return 0, false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	r := p.retries[pod.UID]
	if r == nil || r.at.IsZero() && now.Sub(r.lastAt) >= retryReset {
		r = &retry{}
		p.retries[pod.UID] = r
	}
	backOff = min(firstRetry<<min(r.failures, 10), maxRetry)
	r.evicted, r.failures, r.at = evicted, r.failures+1, now.Add(backOff)
	return backOff, true
}

// startRetry records that a pod is retried now.
func (p *PodManager) startRetry(uid types.UID, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if r := p.retries[uid]; r != nil {
		r.at, r.lastAt = time.Time{}, now
	}
}

func (p *PodManager) dropRetry(uid types.UID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.retries, uid)
}

// waiting returns the evicted or the rejected pods that will be retried and are due,
// ordered by creation time.
func (p *PodManager) waiting(evicted bool, due func(*retry) bool) []*corev1.Pod {
	p.mu.Lock()
	defer p.mu.Unlock()
	var pods []*corev1.Pod
	for uid, r := range p.retries {
		if !r.at.IsZero() && r.evicted == evicted && due(r) {
			pods = append(pods, p.desired[uid].pod) // it is desired: remove drops both
		}
	}
	slices.SortFunc(pods, compareCreation)
	return pods
}

// Revisit retries rejected and evicted pods that are due. The retry of a finished pod
// that was evicted is postponed; other finished pods, and those whose resize to less is done, have
// freed resources, so that all rejected pods and deferred resizes are retried. Resizes are also retried once per
// resizeRetryPeriod, because the result of an admitter can depend on other things. It returns
// the earliest time at which a pod that waits must be checked again without such a reason.
func (p *PodManager) Revisit(finished []types.UID) (retryAt time.Time) {
	now := time.Now()
	for _, uid := range finished {
		p.postponeEvicted(uid, now)
	}
	p.startPreemptors(now)
	due := func(r *retry) bool { return !now.Before(r.at) }
	for _, pod := range p.waiting(false, due) {
		p.retryRejected(pod, now, true)
	}
	freed := p.updateShrinking() || len(finished) > 0
	if freed {
		p.retryAllRejected(now)
	}
	if freed || now.Sub(p.resizesRetriedAt) >= resizeRetryPeriod {
		p.retryResizes(now)
	}
	evicted := p.waiting(true, due)
	if len(evicted) > 0 && !p.cfg.UnderPressure() {
		for _, pod := range evicted {
			p.retryEvicted(pod, now)
		}
	}
	return p.nextRetry(now)
}

// nextRetry returns when the next pod that waits is due, or the zero time if none waits. A pod
// that is due already waits for others to end, which Revisit is called for, or for the end of a
// pressure.
func (p *PodManager) nextRetry(now time.Time) (at time.Time) {
	earliest := func(t time.Time) {
		if at.IsZero() || t.Before(at) {
			at = t
		}
	}
	if len(p.preemptors) > 0 {
		earliest(now.Add(overdueRetry))
	}
	if len(p.pendingResizes) > 0 {
		earliest(p.resizesRetriedAt.Add(resizeRetryPeriod))
		if len(p.shrinking) > 0 {
			earliest(now)
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, r := range p.retries {
		switch {
		case r.at.IsZero():
		case r.at.After(now):
			earliest(r.at)
		default:
			earliest(now.Add(overdueRetry))
		}
	}
	return at
}

// postponeEvicted plans the retry of a finished pod, if it was evicted.
func (p *PodManager) postponeEvicted(uid types.UID, now time.Time) {
	d := p.get(uid)
	st, _ := p.cfg.Workers.State(uid)
	if d == nil || !st.Idle || !st.Termination.Evicted || st.Termination.Deleted || st.Recreate {
		return
	}
	if backOff, ok := p.postpone(d.pod, true, now); ok {
		p.reportRetry(d.pod, "Back-off restarting evicted pod", backOff, now)
	}
}

// retryAfter retries what a change may have freed resources for, or may concern. A status frees
// nothing, and an added pod only what it did not get of its spec before this process started.
func (p *PodManager) retryAfter(op podsource.Op, now time.Time) {
	if op == podsource.Reconcile {
		return
	}
	p.retryResizes(now)
	if op != podsource.Add {
		p.retryAllRejected(now)
	}
}

// retryAllRejected retries all rejected pods, because resources may have become free.
func (p *PodManager) retryAllRejected(now time.Time) {
	for _, pod := range p.waiting(false, func(*retry) bool { return true }) {
		p.retryRejected(pod, now, false)
	}
}

// retryRejected runs the admission of a rejected pod again. If it is still rejected,
// that is reported and increases the back-off only if the retry was due.
func (p *PodManager) retryRejected(pod *corev1.Pod, now time.Time, due bool) {
	v, preemption := p.decide(pod)
	switch {
	case preemption != nil:
		p.startRetry(pod.UID, now)
		p.preempt(pod, preemption, now)
	case v.Admitted:
		p.logPod("retrying rejected pod", pod)
		p.startRetry(pod.UID, now)
		p.set(pod.UID, &desiredPod{pod: pod})
		p.start(pod, now)
	case due:
		p.reject(pod, v, now)
	}
}

// retryEvicted has the resources of an evicted pod removed. Then HandlePodRecreations
// starts it, with admission.
func (p *PodManager) retryEvicted(pod *corev1.Pod, now time.Time) {
	if v, preemption := p.decide(pod); preemption == nil && !v.Admitted {
		if backOff, ok := p.postpone(pod, true, now); ok {
			p.reportRetry(pod, fmt.Sprintf("Back-off restarting evicted pod: %s: %s", v.Reason, v.Message), backOff, now)
		}
		return
	}
	p.logPod("restarting evicted pod", pod)
	p.startRetry(pod.UID, now)
	p.cfg.Workers.Update(podworkers.Update{Pod: pod, Kill: &podworkers.KillOptions{Termination: runtime.Termination{Deleted: true}}, StartTime: now})
	p.cfg.Workers.RequestRecreation(pod.UID)
}

// reportRetry logs and emits when a pod will be retried.
func (p *PodManager) reportRetry(pod *corev1.Pod, message string, backOff time.Duration, now time.Time) {
	p.logPod("pod restart postponed", pod, slog.String("message", message), slog.Time("retryAt", now.Add(backOff)))
	if p.cfg.Recorder != nil {
		p.cfg.Recorder.Record(podspec.NewEvent(pod, corev1.EventTypeWarning, reasonBackOff, fmt.Sprintf("%s; %s", message, nextAttempt(backOff)), now))
	}
}

func nextAttempt(backOff time.Duration) string { return fmt.Sprintf("next attempt in %v", backOff) }

// restoreRetry evaluates the stored status of a static pod. A rejection by a previous
// process is not final: the pod is admitted or rejected as if it were new. The retry of
// an evicted pod is postponed.
func (p *PodManager) restoreRetry(pod *corev1.Pod, now time.Time) (rejected bool) {
	st, _ := p.cfg.Statuses.Get(pod.UID)
	switch {
	case !podspec.IsStatic(pod) || pod.DeletionTimestamp != nil:
	case isRejected(pod, &st):
		return true
	case podspec.IsEvicted(&st):
		if backOff, ok := p.postpone(pod, true, now); ok {
			p.reportRetry(pod, "Back-off restarting pod that was evicted before the agent started", backOff, now)
		}
	}
	return false
}

// isRejected reports whether a pod was rejected and can be admitted as if it were new. One that ran
// before, as until the machine was switched off, can if its containers may run any number of times.
func isRejected(pod *corev1.Pod, st *corev1.PodStatus) bool {
	if podspec.IsRejected(st) {
		return true
	}
	return podspec.SaysRejected(st) && pod.Spec.RestartPolicy == corev1.RestartPolicyAlways && alwaysRestart(pod.Spec.Containers)
}
