package eviction

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/sublet-dev/agent/internal/safe"
)

// errand is work that may take long and is done beside the loop, so that memory is
// looked at meanwhile: never twice at a time. Only the loop's goroutine starts it.
type errand struct {
	mu           sync.Mutex // guards all below
	began, ended time.Time  // of the last one; ended is zero while it runs
}

// times returns when the last one began and ended: zero where there was none, or it
// still runs.
func (e *errand) times() (began, ended time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.began, e.ended
}

// runs reports whether it is under way, and for how long.
func (e *errand) runs(now time.Time) (took time.Duration, ok bool) {
	began, ended := e.times()
	if began.IsZero() || !ended.IsZero() {
		return 0, false
	}
	return now.Sub(began), true
}

// begin starts the work unless it is under way. The loop looks again when it is
// done.
func (m *Manager) begin(e *errand, what string, work func()) {
	e.mu.Lock()
	running := !e.began.IsZero() && e.ended.IsZero()
	if !running {
		e.began, e.ended = time.Now(), time.Time{}
	}
	e.mu.Unlock()
	if running {
		return
	}
	m.beside.Go(func() {
		safe.Do(m.cfg.Logger, what, work)
		e.mu.Lock()
		e.ended = time.Now()
		e.mu.Unlock()
		m.RequestMeasurement()
	})
}

// reclaimMost is how long what nobody needs may take to be deleted. Then it is
// taken that no more of it can be had.
const reclaimMost = 2 * time.Minute

// reclaiming has deleted what nobody needs, once before pods go for a disk, and
// reports whether that is under way.
func (m *Manager) reclaiming(ctx context.Context, t metThreshold) bool {
	if len(m.cfg.Reclaimers) == 0 {
		return false
	}
	if took, runs := m.reclaim.runs(time.Now()); runs {
		return took < reclaimMost // else it is not to be stopped, and not waited for
	}
	if m.reclaimed {
		return false
	}
	m.reclaimed = true
	m.cfg.Logger.Info("reclaiming before pods are evicted",
		slog.String("threshold", t.String()), slog.String("available", t.observation.String()))
	m.state.lastActionAt = time.Now() // only the node's figures from after it count
	m.begin(&m.reclaim, "reclaim", func() {
		ctx, cancel := context.WithTimeout(ctx, reclaimMost)
		defer cancel()
		for _, r := range m.cfg.Reclaimers {
			if err := safe.Call(m.cfg.Logger, "reclaim", func() error { return r.Reclaim(ctx) }); err != nil {
				m.cfg.Logger.Warn("reclaiming failed", slog.Any("error", err))
			}
		}
	})
	return true
}

// counting has files counted where the node does that, and reports whether it is
// to be waited for: until it is done, but no longer than for a pod. After that, what
// was counted so far is what pods are ranked by.
func (m *Manager) counting(ctx context.Context) bool {
	node, ok := m.cfg.Usage.(DiskUsageRefresher)
	if !ok {
		return false
	}
	now, evicted := time.Now(), m.state.lastEvictionAt
	began, ended := m.count.times()
	if _, runs := m.count.runs(now); runs {
		return now.Sub(latest(began, evicted)) < m.cfg.PodCleanupTimeout
	}
	// A count that took long is good for longer: a disk that stays full does not
	// have files counted all the time.
	if !ended.IsZero() && !began.Before(evicted) && now.Sub(ended) < max(m.cfg.MonitoringPeriod, soon, 10*ended.Sub(began)) {
		return false
	}
	since := latest(evicted, now.Add(-m.cfg.MonitoringPeriod))
	m.begin(&m.count, "count files", func() { node.RefreshDiskUsage(ctx, since) })
	return true
}

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
