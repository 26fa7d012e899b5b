package pleg

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/internal/monotonic"
	"github.com/sublet-dev/agent/internal/notify"
	"github.com/sublet-dev/agent/internal/sleep"
	"github.com/sublet-dev/agent/runtime"
)

// GetNewerThan returns a state of the pod that was observed after the given time.
// It returns the stored state if that is new enough. Otherwise it waits for an
// inspection, which it requests at once and shares with concurrent callers. A pod
// that was absent from a relist begun after the given time is returned as an empty
// Pod without an inspection, as is a pod that an inspection finds absent.
//
// It returns the error of a failed inspection; the pod is inspected again
// nonetheless, and a PodSync is emitted when that succeeds. It returns the cause of
// ctx's end, and ErrStopped after Run has ended. It starts no goroutine.
//
// A worker calls it between SyncStarted and SyncEnded, so that one inspection serves
// both.
func (g *Generator) GetNewerThan(ctx context.Context, uid types.UID, at time.Time) (runtime.Pod, error) {
	if delay := time.Until(at); delay > 0 {
		if err := sleep.For(ctx, delay); err != nil {
			return runtime.Pod{}, fmt.Errorf("wait for newer state of pod %s: %w", uid, err)
		}
	}
	p, in, err := g.requestNewerThan(uid, at)
	if in == nil {
		return p, err
	}
	select {
	case <-in.done:
		return in.pod, in.err
	case <-ctx.Done():
		return runtime.Pod{}, fmt.Errorf("wait for newer state of pod %s: %w", uid, context.Cause(ctx))
	}
}

// requestNewerThan returns a state that is newer than at, or else the inspection
// that will return one.
func (g *Generator) requestNewerThan(uid types.UID, at time.Time) (runtime.Pod, *inspection, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	r := g.pods[uid]
	switch {
	case g.stopped:
		return runtime.Pod{}, nil, ErrStopped
	case r == nil && g.health.listed.After(at):
		return runtime.Pod{UID: uid, ObservedAt: g.health.listed}, nil, nil
	case r == nil:
		r = g.record(uid)
	case r.observedAt.After(at):
		return r.observed, nil, nil
	}
	if in := r.joinable(at); in != nil {
		return runtime.Pod{}, in, nil
	}
	// After a failure a later request of that instant is not answered.
	if r.current == nil && r.next == nil && r.failures == 0 && isSameInstant(r.observedAt, r.requestedAt, at) {
		return r.observed, nil, nil
	}
	return runtime.Pod{}, g.requestInspection(r, at, true), nil
}

// joinable returns the inspection under way if it reflects all changes until at,
// and nil if another one is needed. An inspection that began at the very time at
// may have missed a change at that time, unless a RequestInspection came in
// between. Equal times are common with coarse clocks and in tests.
func (r *podRecord) joinable(at time.Time) *inspection {
	if r.current == nil {
		return nil
	}
	if r.current.startTime.After(at) || r.next == nil && isSameInstant(r.current.startTime, r.current.requestedAt, at) {
		return r.current
	}
	return nil
}

// isSameInstant reports whether an inspection both began and was requested by
// RequestInspection at the very time at.
func isSameInstant(startTime, requestedAt, at time.Time) bool {
	return !requestedAt.IsZero() && startTime.Equal(at) && requestedAt.Equal(at)
}

// RequestInspection requests an inspection of the pod that begins after this call.
// It does not block.
func (g *Generator) RequestInspection(uid types.UID) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.requestInspectionNow(uid)
}

func (g *Generator) requestInspectionNow(uid types.UID) {
	if !g.stopped {
		now := time.Now()
		g.requestInspection(g.record(uid), now, false).requestedAt = now
	}
}

// RequestRelist requests a relist that begins after this call. It does not block.
func (g *Generator) RequestRelist() {
	notify.Send(g.relistCh)
}

// SyncStarted reports that a worker syncs the pod. Until SyncEnded, or for at most
// Config.MaxDeferral, runtime events and relists do not cause an inspection of the
// pod: the worker calls GetNewerThan itself. It does not block.
func (g *Generator) SyncStarted(uid types.UID) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.syncing[uid] = struct{}{}
}

// SyncEnded reports that the worker of the pod has nothing more to do for now. If
// the sync may have changed the pod in the runtime, the pod is inspected after this
// call. It is also inspected if it has changed since its last inspection began. It
// does not block.
func (g *Generator) SyncEnded(uid types.UID, changed bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.syncing, uid)
	if changed {
		g.requestInspectionNow(uid)
	}
	if r := g.pods[uid]; r != nil {
		g.endDeferral(r)
	}
}

// endDeferral inspects the pod if a deferred change is newer than its last
// inspection. The caller holds mu.
func (g *Generator) endDeferral(r *podRecord) {
	if r.deferTimer != nil {
		r.deferTimer.Stop()
		r.deferTimer = nil
	}
	isNew, listed := r.deferredSeq > r.lastSeq, r.listed
	r.deferredSeq, r.listed = 0, nil
	switch {
	case !isNew:
	case listed != nil:
		g.goOnFrom(listed, r)
	default:
		g.requestInspection(r, time.Now(), false)
	}
}

// handleRuntimeEvent handles an event of the stream for a change at the given
// time, zero if unknown.
func (g *Generator) handleRuntimeEvent(uid types.UID, at time.Time) {
	if h := g.cfg.Hooks.RuntimeEventReceived; h != nil {
		h(uid)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.stream.silentSince = time.Time{}
	if uid == "" { // the runtime does not know which pod changed
		g.RequestRelist()
		return
	}
	if g.stopped {
		return
	}
	r := g.record(uid)
	if r.isCoveredBy(at, time.Now(), g.cfg.MaxDeferral) {
		return
	}
	r.eventReceived = true
	g.deferInspection(r)
}

// maxEventDelay bounds how late a runtime event may arrive for its time to be
// trusted.
const maxEventDelay = time.Minute

// isCoveredBy reports whether the newest inspection certainly reflects a change at
// the given time that is reported now. A change at an unknown time, which is zero, is
// too old. Only an inspection younger than recent is
// trusted. Times are compared by their age, because the wall clock may have been
// set between the change and the inspection or the arrival of the event.
func (r *podRecord) isCoveredBy(at, now time.Time, recent time.Duration) bool {
	at = monotonic.Past(at, now)
	return at.Before(r.lastStartTime) && now.Sub(at) < maxEventDelay && now.Sub(r.lastStartTime) < recent
}

// deferInspection records a change of the pod. The pod is inspected now or, if it is
// being synced, when that ends. The caller holds mu.
func (g *Generator) deferInspection(r *podRecord) {
	g.seq++
	r.deferredSeq = g.seq
	if _, syncing := g.syncing[r.uid]; !syncing {
		g.endDeferral(r)
		return
	}
	if r.deferTimer == nil {
		r.deferTimer = time.AfterFunc(g.cfg.MaxDeferral, func() {
			g.mu.Lock()
			defer g.mu.Unlock()
			g.endDeferral(r)
		})
	}
}
