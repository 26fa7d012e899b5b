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

// NewerThan returns a view of the pod that was observed after at: the present one
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
func (g *Generator) NewerThan(ctx context.Context, uid types.UID, at time.Time) (runtime.Pod, error) {
	if err := sleepUntil(ctx, at); err != nil {
		return runtime.Pod{}, fmt.Errorf("wait for pod %s: %w", uid, err)
	}
	p, l, err := g.ask(uid, at)
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

// ask returns a view that is newer than at, or the inspection that will give one.
func (g *Generator) ask(uid types.UID, at time.Time) (runtime.Pod, *look, error) {
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
	case r.seen.After(at):
		return r.view, nil, nil
	}
	if l := r.shared(at); l != nil {
		return runtime.Pod{}, l, nil
	}
	if r.cur == nil && r.next == nil && sameInstant(r.seen, r.touch, at) {
		return r.view, nil, nil
	}
	return runtime.Pod{}, g.want(r, at, true), nil
}

// shared returns the inspection under way if it tells what happened until at, and
// nil if another has to begin. One that began in the same instant may have missed
// what happened in it, unless a Touch came in between. Clocks that are coarse, and
// those of tests, make that no rare case.
func (r *record) shared(at time.Time) *look {
	if r.cur == nil {
		return nil
	}
	if r.cur.began.After(at) || r.next == nil && sameInstant(r.cur.began, r.cur.touch, at) {
		return r.cur
	}
	return nil
}

// sameInstant reports that an inspection that began at the very time at was asked
// for by a Touch at that time.
func sameInstant(began, touch, at time.Time) bool {
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

// Touch asks for an inspection of the pod that begins after this call. Whoever
// changed something calls it before Release. It does not block.
func (g *Generator) Touch(uid types.UID) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.stopped {
		now := time.Now()
		g.want(g.record(uid), now, false).touch = now
	}
}

// Relist asks for a listing of all pods that begins after this call. It does not
// block.
func (g *Generator) Relist() {
	select {
	case g.again <- struct{}{}:
	default:
	}
}

// Release says that the pod is no longer busy. What was held back is looked into,
// unless an inspection has begun since or is about to. It does not block.
func (g *Generator) Release(uid types.UID) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if r := g.pods[uid]; r != nil {
		g.release(r)
	}
}

func (g *Generator) release(r *record) {
	if r.hold != nil {
		r.hold.Stop()
		r.hold = nil
	}
	if r.held > r.last && !g.stopped {
		g.want(r, time.Now(), false)
	}
	r.held = 0
}

// hint takes word from the event stream of a change at a time, zero if unknown.
func (g *Generator) hint(uid types.UID, at time.Time) {
	if h := g.cfg.Hooks.Hinted; h != nil {
		h(uid)
	}
	if uid == "" { // the runtime does not know whose it is
		g.Relist()
		return
	}
	g.mu.Lock()
	if g.stopped {
		g.mu.Unlock()
		return
	}
	r := g.record(uid)
	if r.covers(at, time.Now(), g.cfg.Hold) {
		g.mu.Unlock()
		return
	}
	r.hinted = true
	g.hold(r)
	g.mu.Unlock()
	g.unlessBusy(uid)
}

// maxDelay is how late an event is told at most by a stream that is to be believed.
const maxDelay = time.Minute

// covers reports that what happened at a time, and is told now, cannot be missed by
// the newest inspection. Only a recent one is trusted to, and at counts by how long
// ago it is: the wall clock that it was taken from may have been set since that
// inspection, or on the event's way here.
func (r *record) covers(at, now time.Time, recent time.Duration) bool {
	at = monotonic.Past(at, now)
	return !at.IsZero() && at.Before(r.began) && now.Sub(at) < maxDelay && now.Sub(r.began) < recent
}

// hold keeps a change in mind until release. The caller holds mu, and calls
// unlessBusy after it has let go: held first and asked then, so that a turn that
// ends in between finds what to release.
func (g *Generator) hold(r *record) {
	g.seq++
	r.held = g.seq
	if r.hold == nil && g.cfg.Busy != nil {
		r.hold = time.AfterFunc(g.cfg.Hold, func() { g.Release(r.uid) })
	}
}

func (g *Generator) unlessBusy(uid types.UID) {
	busy := false
	if g.cfg.Busy != nil {
		safe.Do(g.cfg.Logger, "ask whether the pod is busy", func() { busy = g.cfg.Busy(uid) })
	}
	if !busy {
		g.Release(uid)
	}
}
