package pleg

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/internal/monotonic"
	"github.com/sublet-dev/agent/internal/notify"
	"github.com/sublet-dev/agent/internal/safe"
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
// A worker for which IsWorking is true calls it before MarkIdle, so that one
// inspection serves both.
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
	if r.current == nil && r.next == nil && isSameInstant(r.observedAt, r.requestedAt, at) {
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
// The caller must call it after changing the pod and before MarkIdle. It does not
// block.
func (g *Generator) RequestInspection(uid types.UID) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.stopped {
		now := time.Now()
		g.requestInspection(g.record(uid), now, false).requestedAt = now
	}
}

// RequestRelist requests a relist that begins after this call. It does not block.
func (g *Generator) RequestRelist() {
	notify.Send(g.relistCh)
}

// MarkIdle ends the deferral of the pod: IsWorking is false for it now. The pod is
// inspected if a deferred change is newer than its last inspection. It does not
// block.
func (g *Generator) MarkIdle(uid types.UID) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if r := g.pods[uid]; r != nil {
		g.endDeferral(r)
	}
}

func (g *Generator) endDeferral(r *podRecord) {
	if r.deferTimer != nil {
		r.deferTimer.Stop()
		r.deferTimer = nil
	}
	if r.deferredSeq > r.lastSeq && !g.stopped {
		g.requestInspection(r, time.Now(), false)
	}
	r.deferredSeq = 0
}

// handleRuntimeEvent handles an event of the stream for a change at the given
// time, zero if unknown.
func (g *Generator) handleRuntimeEvent(uid types.UID, at time.Time) {
	if h := g.cfg.Hooks.RuntimeEventReceived; h != nil {
		h(uid)
	}
	if uid == "" { // the runtime does not know which pod changed
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

// maxEventDelay bounds how late a runtime event may arrive for its time to be
// trusted.
const maxEventDelay = time.Minute

// isCoveredBy reports whether the newest inspection certainly reflects a change at
// the given time that is reported now. Only an inspection younger than recent is
// trusted. Times are compared by their age, because the wall clock may have been
// set between the change and the inspection or the arrival of the event.
func (r *podRecord) isCoveredBy(at, now time.Time, recent time.Duration) bool {
	at = monotonic.Past(at, now)
	return !at.IsZero() && at.Before(r.lastStartTime) && now.Sub(at) < maxEventDelay && now.Sub(r.lastStartTime) < recent
}

// deferInspection records a change of the pod until MarkIdle. The caller holds mu
// and calls enqueueUnlessWorking after it has released mu. The change is recorded
// before IsWorking is called, so that the MarkIdle of a sync that ends in between
// finds it.
func (g *Generator) deferInspection(r *podRecord) {
	g.seq++
	r.deferredSeq = g.seq
	if r.deferTimer == nil && g.cfg.IsWorking != nil {
		r.deferTimer = time.AfterFunc(g.cfg.MaxDeferral, func() { g.MarkIdle(r.uid) })
	}
}

func (g *Generator) enqueueUnlessWorking(uid types.UID) {
	working := false
	if g.cfg.IsWorking != nil {
		safe.Do(g.cfg.Logger, "check whether the pod is working", func() { working = g.cfg.IsWorking(uid) })
	}
	if !working {
		g.MarkIdle(uid)
	}
}
