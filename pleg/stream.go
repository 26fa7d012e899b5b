package pleg

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/internal/logattr"
	"github.com/sublet-dev/agent/internal/safe"
	"github.com/sublet-dev/agent/internal/sleep"
	"github.com/sublet-dev/agent/runtime"
)

// Back-off between attempts to reopen a broken stream.
const (
	minReopenBackOff = 100 * time.Millisecond
	maxReopenBackOff = 30 * time.Second
)

// stream is the state of the event stream. The Generator's mu guards it.
type stream struct {
	calls        uint64 // number of Watch calls
	watching     bool   // a Watch call is under way
	open         bool
	unlisted     bool          // no relist has succeeded since the stream opened
	relistPeriod time.Duration // while the stream is open

	end         context.CancelCauseFunc // of the Watch call
	silentSince time.Time               // when a relist found a missed change, if there was no event since
	reopened    bool                    // the previous Watch call was ended because of that
}

// errSilent ends a Watch call that reports nothing, although something happens.
var errSilent = errors.New("it has not reported what a list shows")

// adjustRelistPeriod sets the relist period of an open stream. A relist that found
// changes without a runtime event resets it to Config.RelistPeriod, and it doubles
// with each relist that found none. A stream that has then reported nothing for that
// period is opened again: it may be one that never will. adjustRelistPeriod returns how
// many of the missed changes the stream is responsible for: none of those before it was open.
func (s *stream) adjustRelistPeriod(missed int, now time.Time, cfg *Config) int {
	if !s.open {
		return 0
	}
	if s.unlisted {
		s.unlisted = false
		return 0
	}
	if missed > 0 {
		s.relistPeriod = cfg.RelistPeriod
	} else {
		s.relistPeriod = min(2*s.relistPeriod, cfg.EventedRelistPeriod)
	}
	switch {
	case s.silentSince.IsZero() && missed > 0:
		s.silentSince = now
	case !s.silentSince.IsZero() && now.Sub(s.silentSince) >= cfg.RelistPeriod:
		s.reopened = true
		s.end(errSilent)
	}
	return missed
}

// watch keeps the event stream open until ctx is done.
func (g *Generator) watch(ctx context.Context) {
	backOff := minReopenBackOff
	for ctx.Err() == nil {
		startTime := time.Now()
		err := g.watchOnce(ctx)
		if ctx.Err() != nil {
			return
		}
		if time.Since(startTime) > maxReopenBackOff {
			backOff = minReopenBackOff
		}
		delay := backOff/2 + rand.N(backOff/2)
		if errors.Is(err, runtime.ErrUnsupported) {
			delay = g.cfg.StreamRetryPeriod
		}
		g.cfg.Logger.Debug("runtime event stream closed", slog.Duration("retryAfter", delay), logattr.Err(err))
		backOff = min(2*backOff, maxReopenBackOff)
		sleep.For(ctx, delay) //nolint:errcheck // the loop checks ctx
	}
}

// watchOnce opens the stream and returns when it breaks.
func (g *Generator) watchOnce(ctx context.Context) error {
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	g.mu.Lock()
	g.stream.calls++
	g.stream.watching, g.stream.silentSince, g.stream.end = true, time.Time{}, end
	call := g.stream.calls
	g.mu.Unlock()
	// The runtime does not confirm that a stream is open: the only sign is that
	// Watch does not return.
	opened := time.AfterFunc(g.cfg.StreamOpenAfter, func() { g.streamOpened(call) })
	err := safe.Call(g.cfg.Logger, "watch runtime events", func() error {
		if w, ok := runtime.Capability[runtime.TimestampedWatcher](g.cfg.Runtime); ok {
			return w.WatchTimestamped(ctx, g.handleRuntimeEvent)
		}
		return g.cfg.Runtime.Watch(ctx, func(uid types.UID) { g.handleRuntimeEvent(uid, time.Time{}) })
	})
	opened.Stop()
	if cause := context.Cause(ctx); errors.Is(cause, errSilent) {
		err = cause
	}
	g.mu.Lock()
	wasOpen := g.stream.open
	g.stream.watching, g.stream.open = false, false
	g.mu.Unlock()
	if wasOpen {
		g.RequestRelist()
		if h := g.cfg.Hooks.StreamChanged; h != nil {
			h(false, err)
		}
	}
	return err
}

// streamOpened marks the stream of the given Watch call as open and requests a
// relist, because the stream does not report what happened before.
func (g *Generator) streamOpened(call uint64) {
	g.mu.Lock()
	if !g.stream.watching || g.stream.calls != call {
		g.mu.Unlock()
		return
	}
	g.stream.open, g.stream.unlisted = true, true
	if !g.stream.reopened { // it may be as silent as before
		g.stream.relistPeriod = g.cfg.EventedRelistPeriod
	}
	g.stream.reopened = false
	g.mu.Unlock()
	g.RequestRelist()
	if h := g.cfg.Hooks.StreamChanged; h != nil {
		h(true, nil)
	}
}
