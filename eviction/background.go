package eviction

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/sublet-dev/agent/internal/logattr"
	"github.com/sublet-dev/agent/internal/safe"
	"github.com/sublet-dev/agent/runtime"
)

// task is work that may take long. It runs outside the manager's loop, so that memory
// is measured meanwhile, and never twice at a time. Only Run's goroutine starts it.
type task struct {
	mu                 sync.Mutex // guards all below
	startTime, endTime time.Time  // of the last run; endTime is zero while it runs
}

// times returns when the last run started and ended. Both are zero if there was none,
// and endTime is zero while it runs.
func (t *task) times() (startTime, endTime time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.startTime, t.endTime
}

// isRunning reports whether the task runs, and for how long.
func (t *task) isRunning(now time.Time) (duration time.Duration, ok bool) {
	startTime, endTime := t.times()
	if startTime.IsZero() || !endTime.IsZero() {
		return 0, false
	}
	return now.Sub(startTime), true
}

// start runs the task unless it runs already, and requests a measurement when it is
// done.
func (m *Manager) start(t *task, name string, work func()) {
	t.mu.Lock()
	running := !t.startTime.IsZero() && t.endTime.IsZero()
	if !running {
		t.startTime, t.endTime = time.Now(), time.Time{}
	}
	t.mu.Unlock()
	if running {
		return
	}
	m.background.Go(func() {
		safe.Do(m.cfg.Logger, name, work)
		t.mu.Lock()
		t.endTime = time.Now()
		t.mu.Unlock()
		m.RequestMeasurement()
	})
}

// reclaimTimeout is the time for all reclaimers together. A reclaimer that takes longer is
// not waited for.
const reclaimTimeout = 2 * time.Minute

// reclaimScope is which reclaimers a reclaim calls.
type reclaimScope uint8

const (
	reclaimNothing   reclaimScope = iota // there was no reclaim
	reclaimNotImages                     // all but each ImageReclaimer
	reclaimAll
)

// scopeFor returns which reclaimers can help with one of the thresholds.
func scopeFor(due []metThreshold, u *runtime.NodeUsage) reclaimScope {
	if slices.ContainsFunc(due, func(t metThreshold) bool { return isDisk(t.Signal) && mayHaveImages(t.Signal, u) }) {
		return reclaimAll
	}
	return reclaimNotImages
}

// reclaimers returns those of a scope.
func (m *Manager) reclaimers(scope reclaimScope) []Reclaimer {
	if scope == reclaimAll {
		return m.cfg.Reclaimers
	}
	return slices.DeleteFunc(slices.Clone(m.cfg.Reclaimers), func(r Reclaimer) bool {
		images, ok := r.(ImageReclaimer)
		return ok && images.RemovesOnlyImages()
	})
}

// runReclaimers calls reclaimers in order. Each has an equal part of the time that is left,
// so that one that hangs, as with a container that cannot be removed, leaves time to the
// others. It reports whether one has used up its part.
func (m *Manager) runReclaimers(ctx context.Context, reclaimers []Reclaimer) (timedOut bool) {
	end := time.Now().Add(reclaimTimeout)
	for i, r := range reclaimers {
		part := time.Until(end) / time.Duration(len(reclaimers)-i)
		ctx, cancel := context.WithTimeout(ctx, part)
		err := safe.Call(m.cfg.Logger, "reclaim", func() error { return r.Reclaim(ctx) })
		timedOut = timedOut || ctx.Err() != nil
		cancel()
		if err != nil {
			m.cfg.Logger.Warn("reclaiming node resources failed", logattr.Err(err))
		}
	}
	return timedOut
}

// needsReclaim starts the reclaimers of a scope, once before a pod is evicted for disk, and
// reports whether the eviction has to wait for them.
func (m *Manager) needsReclaim(ctx context.Context, t metThreshold, scope reclaimScope) bool {
	reclaimers := m.reclaimers(scope)
	if len(reclaimers) == 0 {
		return false
	}
	if duration, running := m.reclaim.isRunning(time.Now()); running {
		return duration < reclaimTimeout // after it, a reclaimer ignores its context
	}
	if m.reclaimed >= scope && !m.needsSecondReclaim() {
		return false
	}
	m.reclaimed = scope
	level := slog.LevelInfo
	if m.blocked[conditionOf(t.Signal)] != "" {
		level = slog.LevelDebug // the last reclaim and its result were logged
	}
	m.cfg.Logger.Log(ctx, level, "reclaiming node resources",
		slog.String("threshold", t.String()), slog.String("observed", t.observation.String()))
	m.state.lastActionAt = time.Now() // older observations of the node do not count
	m.start(&m.reclaim, "reclaim", func() { m.reclaimTimedOut.Store(m.runReclaimers(ctx, reclaimers)) })
	return true
}

// needsSecondReclaim reports whether the last reclaim, which has ended, may have missed what a pod
// no longer uses that has left since: its image and its containers. One in which a reclaimer took
// all of its time is not repeated in the same shortage, because every pod would wait that long.
func (m *Manager) needsSecondReclaim() bool {
	startTime, _ := m.reclaim.times()
	return startTime.Before(m.leftAt) && !m.reclaimTimedOut.Load()
}

// needsDiskUsage starts counting the files of pods if the provider supports it, and
// reports whether the eviction has to wait for it: until it is done, but at most for
// PodCleanupTimeout. After that, pods are ranked by what has been counted so far.
func (m *Manager) needsDiskUsage(ctx context.Context) bool {
	node, ok := m.cfg.Usage.(DiskUsageRefresher)
	if !ok {
		return false
	}
	now, evicted := time.Now(), m.state.lastEvictionAt
	startTime, endTime := m.count.times()
	if _, running := m.count.isRunning(now); running {
		return now.Sub(latest(startTime, evicted)) < m.cfg.PodCleanupTimeout
	}
	// A count that took long is valid for longer, so that a disk that stays full does
	// not cause counting without a pause.
	if !startTime.Before(evicted) && now.Sub(endTime) < max(m.cfg.MonitoringPeriod, retryPeriod, 10*endTime.Sub(startTime)) {
		return false
	}
	since := latest(evicted, now.Add(-m.cfg.MonitoringPeriod))
	m.start(&m.count, "count files", func() { node.RefreshDiskUsage(ctx, since) })
	return true
}

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
