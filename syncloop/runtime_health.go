package syncloop

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/sublet-dev/agent/internal/safe"
	"github.com/sublet-dev/agent/internal/sleep"
	"github.com/sublet-dev/agent/runtimestate"
)

// ErrRuntimeNotReady is wrapped by the error of Healthy while the runtime is not ready.
var ErrRuntimeNotReady = errors.New("container runtime not ready")

// RuntimeHealth returns what the node reports of its runtime besides loop, the result of
// Healthy: rt, the result of runtimestate.Tracker.Healthy, in the words of a kubelet, unless
// loop says the same. It wraps ErrRuntimeNotReady except if only the network is not ready.
func RuntimeHealth(loop, rt error) error {
	switch {
	case rt == nil, loop != nil && strings.Contains(loop.Error(), rt.Error()):
		return nil
	case errors.Is(rt, runtimestate.ErrNetworkNotReady):
		return fmt.Errorf("container runtime network not ready: %w", rt)
	}
	return fmt.Errorf("%w: %w", ErrRuntimeNotReady, rt)
}

const (
	firstBackOff = 100 * time.Millisecond
	maxBackOff   = 5 * time.Second
)

// check is a result of RuntimeState.Ready.
type check struct {
	at  time.Time
	err error
}

// runtimeHealth decides whether inputs are handled. It becomes ready with the first
// successful check, and not ready when there was none for as long as the threshold.
type runtimeHealth struct {
	ready       bool
	lastReadyAt time.Time // the last successful check
	err         error     // of the last check
}

func (h *runtimeHealth) record(c check) {
	h.err = c.err
	if c.err == nil {
		h.ready, h.lastReadyAt = true, c.at
	}
}

// evaluate applies the threshold, and returns why the runtime is not ready.
func (h *runtimeHealth) evaluate(now time.Time, threshold time.Duration) error {
	if now.Sub(h.lastReadyAt) > threshold {
		h.ready = false
	}
	switch {
	case h.ready:
		return nil
	case h.err != nil:
		return fmt.Errorf("%w: %w", ErrRuntimeNotReady, h.err)
	case h.lastReadyAt.IsZero():
		return fmt.Errorf("%w: no status received yet", ErrRuntimeNotReady)
	}
	return fmt.Errorf("%w: no status since %s", ErrRuntimeNotReady, h.lastReadyAt.Format(time.TimeOnly))
}

// watchRuntime checks whether the runtime is ready: at the check period while it is,
// with back-off while it is not, and immediately when a recheck is requested.
func (l *Loop) watchRuntime(ctx context.Context, checks chan<- check) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	backOff := firstBackOff
	recheck := l.cfg.RuntimeState.Recheck()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		case <-recheck:
		}
		c := l.checkRuntime(ctx)
		select {
		case <-ctx.Done():
			return
		case checks <- c:
		}
		if c.err == nil {
			backOff = firstBackOff
			timer.Reset(sleep.UntilMultiple(l.cfg.RuntimeCheckPeriod))
			continue
		}
		timer.Reset(backOff)
		backOff = min(2*backOff, maxBackOff)
	}
}

func (l *Loop) checkRuntime(ctx context.Context) check {
	ctx, cancel := context.WithTimeout(ctx, l.cfg.RuntimeCheckPeriod)
	defer cancel()
	err := safe.Call(l.cfg.Logger, "check whether the runtime is ready", func() error { return l.cfg.RuntimeState.Ready(ctx) })
	return check{at: time.Now(), err: err}
}
