package pleg

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/internal/monotonic"
	"github.com/sublet-dev/agent/internal/safe"
	"github.com/sublet-dev/agent/runtime"
)

// GetNewerThan returns a view of the pod that was observed after at: the present one
// if it is new enough, else that of an inspection which it asks for at once and
// shares with whoever else waits for one that begins late enough. A pod that was
// in no listing begun after at is known to be absent, without asking; it gives an
// empty Pod, as does one that an inspection finds absent.
//
// It returns the inspection's error if that fails; the pod is inspected again
// nonetheless, and a PodSync tells when it succeeds. It returns the cause of
// ctx's end, and ErrStopped once Run has ended. It starts no goroutine.
//
// A worker that the Generator takes to be busy asks first and then calls Release,
// so that one inspection serves both.
func (g *Generator) GetNewerThan(ctx context.Context, uid types.UID, at time.Time) (runtime.Pod, error) {
	if err := sleepUntil(ctx, at); err != nil {
		return runtime.Pod{}, fmt.Errorf("wait for pod %s: %w", uid, err)
	}
	p, l, err := g.requestNewerThan(uid, at)
	if l == nil {
		return p, err
	}
	select {
	case <-l.done:
		return l.pod, l.err
	case <-ctx.Done():
		return runtime.Pod{}, fmt.Errorf("inspect pod %s: %w", uid, context.Cause(ctx))
	}
}

// requestNewerThan returns a view that is newer than at, or the inspection that will give one.
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
	if l := r.joinable(at); l != nil {
		return runtime.Pod{}, l, nil
	}
	if r.current == nil && r.next == nil && isSameInstant(r.observedAt, r.requestedAt, at) {
		return r.observed, nil, nil
	}
	return runtime.Pod{}, g.requestInspection(r, at, true), nil
}

// joinable returns the inspection under way if it tells what happened until at, and
// nil if another has to begin. One that began in the same instant may have missed
// what happened in it, unless a Touch came in between. Clocks that are coarse, and
// those of tests, make that no rare case.
func (r *podRecord) joinable(at time.Time) *inspection {
	if r.current == nil {
		return nil
	}
	if r.current.began.After(at) || r.next == nil && isSameInstant(r.current.began, r.current.touch, at) {
		return r.current
	}
	return nil
}

// isSameInstant reports that an inspection that began at the very time at was asked
// for by a Touch at that time.
func isSameInstant(began, touch, at time.Time) bool {
	return !touch.IsZero() && began.Equal(at) && touch.Equal(at)
}

// sleepUntil waits for a time that may be in the future.
func sleepUntil(ctx context.Context, at time.Time) error {
	wait := time.Until(at)
	if wait <= 0 {
		return nil
	}
	t := time.NewTimer(wait)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// RequestInspection asks for an inspection of the pod that begins after this call. Whoever
// changed something calls it before Release. It does not block.
func (g *Generator) RequestInspection(uid types.UID) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.stopped {
		now := time.Now()
		g.requestInspection(g.record(uid), now, false).touch = now
	}
}

// RequestRelist asks for a listing of all pods that begins after this call. It does not
// block.
func (g *Generator) RequestRelist() {
	select {
	case g.relistCh <- struct{}{}:
	default:
	}
}

// MarkIdle says that the pod is no longer busy. What was held back is looked into,
// unless an inspection has begun since or is about to. It does not block.
func (g *Generator) MarkIdle(uid types.UID) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if r := g.pods[uid]; r != nil {
		g.release(r)
	}
}

func (g *Generator) release(r *podRecord) {
	if r.deferTimer != nil {
		r.deferTimer.Stop()
		r.deferTimer = nil
	}
	if r.deferredSeq > r.last && !g.stopped {
		g.requestInspection(r, time.Now(), false)
	}
	r.deferredSeq = 0
}

// handleRuntimeEvent takes word from the event stream of a change at a time, zero if unknown.
func (g *Generator) handleRuntimeEvent(uid types.UID, at time.Time) {
	if h := g.cfg.Hooks.RuntimeEventReceived; h != nil {
		h(uid)
	}
	if uid == "" { // the runtime does not know whose it is
		g.RequestRelist()
		return
	}
	g.mu.Lock()
	if g.stopped {
		g.mu.Unlock()
		return
	}
	r := g.record(uid)
	if r.isCoveredBy(at, time.Now(), g.cfg.MaxDeferral) {
		g.mu.Unlock()
		return
	}
	r.eventReceived = true
	g.deferInspection(r)
	g.mu.Unlock()
	g.enqueueUnlessWorking(uid)
}

// maxDelay is how late an event is told at most by a stream that is to be believed.
const maxDelay = time.Minute

// isCoveredBy reports that what happened at a time, and is told now, cannot be missed by
// the newest inspection. Only a recent one is trusted to, and at counts by how long
// ago it is: the wall clock that it was taken from may have been set since that
// inspection, or on the event's way here.
func (r *podRecord) isCoveredBy(at, now time.Time, recent time.Duration) bool {
	at = monotonic.Past(at, now)
	return !at.IsZero() && at.Before(r.began) && now.Sub(at) < maxDelay && now.Sub(r.began) < recent
}

// deferInspection keeps a change in mind until release. The caller holds mu, and calls
// unlessBusy after it has let go: held first and asked then, so that a turn that
// ends in between finds what to release.
func (g *Generator) deferInspection(r *podRecord) {
	g.seq++
	r.deferredSeq = g.seq
	if r.deferTimer == nil && g.cfg.IsWorking != nil {
		r.deferTimer = time.AfterFunc(g.cfg.MaxDeferral, func() { g.MarkIdle(r.uid) })
	}
}

func (g *Generator) enqueueUnlessWorking(uid types.UID) {
	busy := false
	if g.cfg.IsWorking != nil {
		safe.Do(g.cfg.Logger, "ask whether the pod is busy", func() { busy = g.cfg.IsWorking(uid) })
	}
	if !busy {
		g.MarkIdle(uid)
	}
}
