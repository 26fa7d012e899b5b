package syncloop

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sublet-dev/agent/internal/safe"
)

// ErrRuntimeNotReady is wrapped by the error of Healthy while the runtime is not ready.
var ErrRuntimeNotReady = errors.New("the runtime is not ready")

const (
	firstBackOff = 100 * time.Millisecond
	maxBackOff   = 5 * time.Second
)

// check is what the runtime said of itself.
type check struct {
	at  time.Time
	err error
}

// runtimeHealth is whether pods are handed on. It opens with the first good word of the
// runtime and shuts when there was none for as long as patience lasts.
type runtimeHealth struct {
	ready       bool
	lastReadyAt time.Time // the last good word
	err         error     // the last word, if bad
}

// record takes a word of the runtime.
func (g *runtimeHealth) record(c check) {
	g.err = c.err
	if c.err == nil {
		g.ready, g.lastReadyAt = true, c.at
	}
}

// evaluate shuts the gate if patience is over, and reports why it is shut.
func (g *runtimeHealth) evaluate(now time.Time, patience time.Duration) error {
	if g.ready && now.Sub(g.lastReadyAt) > patience {
		g.ready = false
	}
	switch {
	case g.ready:
		return nil
	case g.err != nil:
		return fmt.Errorf("%w: %w", ErrRuntimeNotReady, g.err)
	case g.lastReadyAt.IsZero():
		return fmt.Errorf("%w: it has not answered yet", ErrRuntimeNotReady)
	}
	return fmt.Errorf("%w: no answer since %s", ErrRuntimeNotReady, g.lastReadyAt.Format(time.TimeOnly))
}

// watchRuntime asks the runtime whether it is ready, at the check period while it
// is and backing off while it is not, and at once when there is reason to.
func (l *Loop) watchRuntime(ctx context.Context, checks chan<- check) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	wait := firstBackOff
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		case <-l.cfg.RecheckRuntime:
		}
		c := l.check(ctx)
		select {
		case <-ctx.Done():
			return
		case checks <- c:
		}
		if c.err == nil {
			wait = firstBackOff
			timer.Reset(l.cfg.RuntimeCheckPeriod)
			continue
		}
		timer.Reset(min(wait, maxBackOff))
		wait *= 2
		wait = min(wait, maxBackOff)
	}
}

func (l *Loop) check(ctx context.Context) check {
	ctx, cancel := context.WithTimeout(ctx, l.cfg.RuntimeCheckPeriod)
	defer cancel()
	err := safe.Call(l.cfg.Logger, "ask the runtime whether it is ready", func() error { return l.cfg.RuntimeReady(ctx) })
	return check{at: time.Now(), err: err}
}
