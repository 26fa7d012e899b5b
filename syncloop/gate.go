package syncloop

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sublet-dev/agent/internal/safe"
)

// ErrNotReady is wrapped by the error of Healthy while the runtime is not ready.
var ErrNotReady = errors.New("the runtime is not ready")

const (
	firstBackOff = 100 * time.Millisecond
	maxBackOff   = 5 * time.Second
)

// check is what the runtime said of itself.
type check struct {
	at  time.Time
	err error
}

// gate is whether pods are handed on. It opens with the first good word of the
// runtime and shuts when there was none for as long as patience lasts.
type gate struct {
	open bool
	good time.Time // the last good word
	err  error     // the last word, if bad
}

// hear takes a word of the runtime.
func (g *gate) hear(c check) {
	g.err = c.err
	if c.err == nil {
		g.open, g.good = true, c.at
	}
}

// judge shuts the gate if patience is over, and reports why it is shut.
func (g *gate) judge(now time.Time, patience time.Duration) error {
	if g.open && now.Sub(g.good) > patience {
		g.open = false
	}
	switch {
	case g.open:
		return nil
	case g.err != nil:
		return fmt.Errorf("%w: %w", ErrNotReady, g.err)
	case g.good.IsZero():
		return fmt.Errorf("%w: it has not answered yet", ErrNotReady)
	}
	return fmt.Errorf("%w: no answer since %s", ErrNotReady, g.good.Format(time.TimeOnly))
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
		case <-l.cfg.Recheck:
		}
		c := l.check(ctx)
		select {
		case <-ctx.Done():
			return
		case checks <- c:
		}
		if c.err == nil {
			wait = firstBackOff
			timer.Reset(l.cfg.CheckPeriod)
			continue
		}
		timer.Reset(min(wait, maxBackOff))
		wait *= 2
		wait = min(wait, maxBackOff)
	}
}

func (l *Loop) check(ctx context.Context) check {
	ctx, cancel := context.WithTimeout(ctx, l.cfg.CheckPeriod)
	defer cancel()
	err := safe.Call(l.cfg.Logger, "ask the runtime whether it is ready", func() error { return l.cfg.Ready(ctx) })
	return check{at: time.Now(), err: err}
}
