// Package sleep waits for a duration or the end of a context, and lets timers share wake-ups.
package sleep

import (
	"context"
	"time"
)

// For blocks until d has passed, and returns nil, or until ctx is done, and returns
// the cause of its end. For d of zero or less it does not block: the result is nil, or
// the cause if ctx is done already.
func For(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return context.Cause(ctx)
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// UntilMultiple returns how long it is until the next multiple of period, of which the first is
// the zero time: more than zero and at most period. Timers that need not be exact fire together
// by it, so that an idle machine wakes up once for all of them.
func UntilMultiple(period time.Duration) time.Duration {
	now := time.Now()
	return now.Truncate(period).Add(period).Sub(now.Round(0))
}
