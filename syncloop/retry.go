package syncloop

import (
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/podworkers"
)

// Nobody puts another pod in the place of a static one that the node has rejected or
// evicted: it is tried again when what spoke against it is over. A rejected one is when
// pods change or end, and with back-off, since an admitter may have changed its mind
// for reasons of its own. An evicted one is with back-off alone, and not under
// pressure: its start is what may bring the pressure back.

const (
	firstRetry = 10 * time.Second
	maxRetry   = 5 * time.Minute
	// retryReset is how long a pod has to run until its next eviction counts as its first.
	retryReset = 2 * maxRetry
	// reasonBackOff is the reason of events about when a pod is tried again.
	reasonBackOff = "BackOff"
)

// retry is a static pod that was rejected or evicted, and what is kept of it once it
// runs again.
type retry struct {
	evicted bool      // it had been admitted
	fails   int       // evictions or rejections in a row
	at      time.Time // when it is tried next; zero: it runs, or is about to
	began   time.Time // when it was tried last
}

// Retry is a pod that was rejected or evicted and is tried again.
type Retry struct {
	UID types.UID
	At  time.Time // not before; of a rejected pod: or when pods change or end
}

// Retries returns the pods that wait to be tried again, in the order of their UIDs. It
// may be called from any goroutine.
func (p *PodManager) Retries() []Retry {
	p.mu.Lock()
	defer p.mu.Unlock()
	var list []Retry
	for _, uid := range slices.Sorted(maps.Keys(p.retries)) {
		if r := p.retries[uid]; !r.at.IsZero() {
			list = append(list, Retry{uid, r.at})
		}
	}
	return list
}

// putOff plans the next attempt at a static pod. It returns how long that is, and
// false for a pod that is not tried again.
func (p *PodManager) putOff(pod *corev1.Pod, evicted bool, now time.Time) (wait time.Duration, ok bool) {
	if !podspec.IsStatic(pod) || pod.DeletionTimestamp != nil {
		return 0, false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	r := p.retries[pod.UID]
	if r == nil || r.at.IsZero() && now.Sub(r.began) >= retryReset {
		r = &retry{}
		p.retries[pod.UID] = r
	}
	wait = min(firstRetry<<min(r.fails, 10), maxRetry)
	r.evicted, r.fails, r.at = evicted, r.fails+1, now.Add(wait)
	return wait, true
}

// startRetry notes that a pod is being tried.
func (p *PodManager) startRetry(uid types.UID, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if r := p.retries[uid]; r != nil {
		r.at, r.began = time.Time{}, now
	}
}

func (p *PodManager) dropRetry(uid types.UID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.retries, uid)
}

// waiting returns the pods that wait to be tried again and are of that kind, those
// that were created first first.
func (p *PodManager) waiting(evicted bool, due func(*retry) bool) []*corev1.Pod {
	p.mu.Lock()
	defer p.mu.Unlock()
	var pods []*corev1.Pod
	for uid, r := range p.retries {
		if !r.at.IsZero() && r.evicted == evicted && due(r) {
			pods = append(pods, p.desired[uid].pod) // it is wanted: remove drops both
		}
	}
	slices.SortFunc(pods, byCreation)
	return pods
}

// Revisit tries pods again that were rejected or evicted, if their time has come.
// ended are pods that have come to their end: those that were evicted are put off, and
// the others make room.
func (p *PodManager) Revisit(ended []types.UID) {
	now := time.Now()
	for _, uid := range ended {
		p.putOffEvicted(uid, now)
	}
	due := func(r *retry) bool { return !now.Before(r.at) }
	for _, pod := range p.waiting(false, due) {
		p.retryRejected(pod, now, true)
	}
	if len(ended) > 0 {
		p.retryAllRejected(now)
	}
	evicted := p.waiting(true, due)
	if len(evicted) == 0 || p.cfg.UnderPressure() {
		return
	}
	for _, pod := range evicted {
		p.retryEvicted(pod, now)
	}
}

// putOffEvicted plans the next attempt at a pod that has ended, if it was evicted.
func (p *PodManager) putOffEvicted(uid types.UID, now time.Time) {
	w := p.get(uid)
	st, _ := p.cfg.Workers.State(uid)
	if w == nil || !st.Idle || !st.Termination.Evicted || st.Termination.Deleted {
		return
	}
	if wait, ok := p.putOff(w.pod, true, now); ok {
		p.tellRetry(w.pod, "Back-off restarting evicted pod", wait, now)
	}
}

// retryAllRejected asks about all pods that were rejected, since there may be room.
func (p *PodManager) retryAllRejected(now time.Time) {
	for _, pod := range p.waiting(false, func(*retry) bool { return true }) {
		p.retryRejected(pod, now, false)
	}
}

// retryRejected asks about a pod once more. That it is still rejected is told, and
// lengthens its back-off, when that was due.
func (p *PodManager) retryRejected(pod *corev1.Pod, now time.Time, due bool) {
	v := p.admit(pod)
	switch {
	case v.Admitted:
		p.cfg.Logger.Info("rejected pod is tried again", podAttrs(pod)...)
		p.startRetry(pod.UID, now)
		p.set(pod.UID, &desiredPod{pod: pod})
		p.begin(pod, now)
	case due:
		p.reject(pod, v, now)
	}
}

// retryEvicted has what is left of an evicted pod removed; then it begins anew, by
// Again and by admission.
func (p *PodManager) retryEvicted(pod *corev1.Pod, now time.Time) {
	if v := p.admit(pod); !v.Admitted {
		if wait, ok := p.putOff(pod, true, now); ok {
			p.tellRetry(pod, fmt.Sprintf("Back-off restarting evicted pod: %s: %s", v.Reason, v.Message), wait, now)
		}
		return
	}
	p.cfg.Logger.Info("evicted pod is started again", podAttrs(pod)...)
	p.startRetry(pod.UID, now)
	p.cfg.Workers.Update(podworkers.Update{Pod: pod, Kill: &podworkers.KillOptions{Deleted: true}, StartTime: now})
	p.cfg.Workers.RequestRecreation(pod.UID)
}

// tellRetry tells of a pod that is tried again when that will be.
func (p *PodManager) tellRetry(pod *corev1.Pod, why string, wait time.Duration, now time.Time) {
	p.cfg.Logger.Info("pod is tried again", append(podAttrs(pod), slog.String("message", why), slog.Duration("in", wait), slog.Time("nextAttempt", now.Add(wait)))...)
	if p.cfg.Recorder != nil {
		p.cfg.Recorder.Record(podspec.NewEvent(pod, corev1.EventTypeWarning, reasonBackOff, fmt.Sprintf("%s; %s", why, nextAttempt(wait)), now))
	}
}

func nextAttempt(wait time.Duration) string { return fmt.Sprintf("next attempt in %v", wait) }

func podAttrs(pod *corev1.Pod) []any {
	return []any{slog.String("namespace", pod.Namespace), slog.String("pod", pod.Name), slog.String("uid", string(pod.UID))}
}

// restoreRetry looks at what a former process told of a static pod. A rejection is not
// final: the pod is asked about as if it were new. After an eviction it is put off.
func (p *PodManager) restoreRetry(pod *corev1.Pod, now time.Time) (rejected bool) {
	st, _ := p.cfg.Statuses.Get(pod.UID)
	switch {
	case !podspec.IsStatic(pod) || pod.DeletionTimestamp != nil:
	case podspec.IsRejected(&st):
		return true
	case podspec.IsEvicted(&st):
		if wait, ok := p.putOff(pod, true, now); ok {
			p.tellRetry(pod, "Back-off restarting pod that was evicted before the agent started", wait, now)
		}
	}
	return false
}
