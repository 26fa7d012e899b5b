package pleg

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/internal/safe"
	"github.com/sublet-dev/agent/runtime"
)

// Waits between tries to open a broken stream.
const (
	firstReopen = 100 * time.Millisecond
	lastReopen  = 30 * time.Second
)

// stream is what is known of the event stream. The Generator's mu guards it.
type stream struct {
	calls    uint64 // of Watch
	calling  bool
	open     bool
	fresh    bool          // nothing was listed since it is open
	backstop time.Duration // between listings while it is open
}

// markOpen sets how long to go without a listing: long, unless the last one found
// what the stream had not told of. Trust comes back by doubling. It returns how
// many changes the stream is to blame for: none before it was open.
func (s *stream) markOpen(missed int, cfg *Config) int {
	switch {
	case !s.open:
		return 0
	case s.fresh:
		s.fresh = false
		return 0
	case missed > 0:
		s.backstop = cfg.RelistPeriod
	default:
		s.backstop = min(2*s.backstop, cfg.EventedRelistPeriod)
	}
	return missed
}

// watch keeps the event stream open until ctx is done.
func (g *Generator) watch(ctx context.Context) {
	wait := firstReopen
	for ctx.Err() == nil {
		began := time.Now()
		err := g.watchOnce(ctx)
		if ctx.Err() != nil {
			return
		}
		if time.Since(began) > lastReopen {
			wait = firstReopen
		}
		pause := wait/2 + rand.N(wait/2)
		if errors.Is(err, runtime.ErrUnsupported) {
			pause = g.cfg.StreamRetryPeriod
		}
		g.cfg.Logger.Debug("event stream is not open", slog.Any("err", err), slog.Duration("retry", pause))
		wait = min(2*wait, lastReopen)
		sleepUntil(ctx, time.Now().Add(pause)) //nolint:errcheck // the loop looks at ctx
	}
}

// watchOnce opens the stream and returns when it breaks.
func (g *Generator) watchOnce(ctx context.Context) error {
	g.mu.Lock()
	g.stream.calls++
	g.stream.calling = true
	call := g.stream.calls
	g.mu.Unlock()
	// Nothing tells that a stream is open but that it does not end.
	settle := time.AfterFunc(g.cfg.StreamOpenAfter, func() { g.opened(call) })
	err := safe.Call(g.cfg.Logger, "watch events", func() error {
		if d, ok := runtime.Capability[runtime.TimestampedWatcher](g.cfg.Runtime); ok {
			return d.WatchTimestamped(ctx, g.handleRuntimeEvent)
		}
		return g.cfg.Runtime.Watch(ctx, func(uid types.UID) { g.handleRuntimeEvent(uid, time.Time{}) })
	})
	settle.Stop()
	g.mu.Lock()
	was := g.stream.open
	g.stream.calling, g.stream.open = false, false
	g.mu.Unlock()
	if was {
		g.RequestRelist()
		if h := g.cfg.Hooks.StreamChanged; h != nil {
			h(false, err)
		}
	}
	return err
}

// opened takes note that the stream is open, and has everything listed: what
// happened before it was open, it has not told.
func (g *Generator) opened(call uint64) {
	g.mu.Lock()
	if !g.stream.calling || g.stream.calls != call {
		g.mu.Unlock()
		return
	}
	g.stream.open, g.stream.fresh = true, true
	g.stream.backstop = g.cfg.EventedRelistPeriod
	g.mu.Unlock()
	g.RequestRelist()
	if h := g.cfg.Hooks.StreamChanged; h != nil {
		h(true, nil)
	}
}
