// Package loglimit bounds what clients of a server can write to its log.
package loglimit

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// Period is the least time between two records of a Limit.
const Period = time.Minute

// Limit logs one record of a kind per Period. The zero value is ready for use.
type Limit struct {
	mu      sync.Mutex
	last    time.Time
	omitted int
}

// Log logs a record unless one was logged less than a Period ago. The next that is logged says how many were
// omitted since.
func (l *Limit) Log(ctx context.Context, log *slog.Logger, level slog.Level, msg string, attrs ...slog.Attr) {
	omitted, ok := l.next()
	if !ok {
		return
	}
	if omitted > 0 {
		attrs = append(attrs, slog.Int("omitted", omitted))
	}
	log.LogAttrs(ctx, level, msg, attrs...) //nolint:sloglint // a constant of the caller
}

// next reports whether a record is logged, and how many were omitted before it.
func (l *Limit) next() (omitted int, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	if !l.last.IsZero() && now.Sub(l.last) < Period {
		l.omitted++
		return 0, false
	}
	omitted, l.omitted, l.last = l.omitted, 0, now
	return omitted, true
}
