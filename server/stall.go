package server

import (
	"io"
	"sync/atomic"
	"time"
)

// stallWriter detects that a write takes long.
type stallWriter struct {
	io.Writer
	events atomic.Uint64 // begins and ends of writes: odd while one lasts
}

// Write implements io.Writer.
func (w *stallWriter) Write(b []byte) (int, error) {
	w.events.Add(1)
	defer w.events.Add(1)
	return w.Writer.Write(b)
}

// watch calls stalled after each period for all of which one write lasted, until it returns
// false or done is closed.
func (w *stallWriter) watch(done <-chan struct{}, period time.Duration, stalled func() bool) {
	ticker := time.NewTicker(period)
	defer ticker.Stop()
	for last := uint64(0); ; {
		select {
		case <-done:
			return
		case <-ticker.C:
		}
		now := w.events.Load()
		if now%2 == 1 && now == last && !stalled() {
			return
		}
		last = now
	}
}
