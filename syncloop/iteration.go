package syncloop

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/internal/logattr"
	"github.com/sublet-dev/agent/internal/safe"
	"github.com/sublet-dev/agent/pleg"
	"github.com/sublet-dev/agent/podsource"
	"github.com/sublet-dev/agent/podworkers"
	"github.com/sublet-dev/agent/probe"
)

// maxIterationAge is the health threshold of the loop: for the age of the last
// iteration, the delay of a requeue and the duration of a cleanup.
const maxIterationAge = 2 * time.Minute

// ErrStalled is wrapped by the error of Healthy when iterations stop or have no effect.
var ErrStalled = errors.New("sync loop stalled")

// runner is the state of one Run of a Loop. Only the goroutine of the loop uses it.
type runner struct {
	*Loop
	health          runtimeHealth
	lastLoggedReady bool
	checks          chan check
	cleanupDone     chan cleanupResult // one slot
	cleaningUp      bool               // a cleanup runs
	cleanupNeeded   bool               // there is a reason for another
	lastCleanupAt   time.Time          // start of the last cleanup of all pods
	retryAt         time.Time          // when Handler.Revisit has something to do; zero: it has not
	housekeeping    *time.Timer        // see scheduleHousekeeping
	schedule        housekeepingSchedule
	paused          bool // LoopWorkers.PauseRequeues was called with this
	wg              sync.WaitGroup
}

// cleanupResult is the result of a cleanup.
type cleanupResult struct {
	recreated []types.UID
	settled   bool
}

// Run handles inputs until ctx is done or the configuration channel is closed. It
// terminates no pod. It must be called once only.
func (l *Loop) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	r := &runner{
		Loop: l, checks: make(chan check), cleanupDone: make(chan cleanupResult, 1), cleanupNeeded: true, retryAt: time.Now(),
		housekeeping: time.NewTimer(l.cfg.HousekeepingPeriod), schedule: newHousekeepingSchedule(time.Now(), l.cfg.HousekeepingPeriod, l.cfg.IdleHousekeepingPeriod),
	}
	if l.cfg.Cleaner != nil {
		defer l.cfg.Cleaner.Wait()
	}
	defer r.wg.Wait()
	defer cancel()
	defer r.housekeeping.Stop()
	if l.cfg.RuntimeState != nil {
		r.wg.Go(func() { l.watchRuntime(ctx, r.checks) })
	}
	r.endIteration()
	for {
		startTime, in, ok := time.Now(), Input(""), true
		safe.Do(l.cfg.Logger, "sync loop iteration", func() { startTime, in, ok = r.iterate(ctx) })
		if !ok {
			return nil
		}
		r.endIteration()
		if h := l.cfg.Hooks.IterationEnded; h != nil {
			h(in, time.Since(startTime))
		}
	}
}

// iterate waits for an input and handles it. It returns false if the loop must end.
func (r *runner) iterate(ctx context.Context) (startTime time.Time, in Input, ok bool) {
	// While the runtime is not ready, inputs stay in their channels.
	var (
		changes        <-chan podsource.Change
		events, probes <-chan struct{}
		finished       <-chan struct{}
	)
	if r.health.ready {
		changes = r.cfg.Changes
		if r.cfg.Workers != nil && !r.cleaningUp {
			finished = r.cfg.Workers.NotifyFinished()
		}
		if r.cfg.Events != nil {
			events = r.cfg.Events.Notify()
		}
		if r.cfg.Probes != nil {
			probes = r.cfg.Probes.Notify()
		}
	}
	select {
	case <-ctx.Done():
		return time.Time{}, "", false
	case c, open := <-changes:
		startTime, in, r.cleanupNeeded = time.Now(), InputChange, true
		r.retrySoon(startTime)
		if !open {
			r.cfg.Logger.Info("pod configuration channel closed, stopping sync loop")
			return time.Time{}, "", false
		}
		r.cfg.Handler.HandlePodChange(c)
	case <-events:
		startTime, in, r.cleanupNeeded = time.Now(), InputEvent, true
		r.handleEvents(r.cfg.Events.Drain())
	case <-probes:
		startTime, in = time.Now(), InputProbe
		r.handleProbeResults(r.cfg.Probes.Drain())
	case <-r.housekeeping.C:
		startTime, in = time.Now(), InputHousekeeping
		r.schedule.ran(startTime)
		if r.health.ready {
			r.retryAt = r.cfg.Handler.Revisit(nil)
		}
		r.cleanUpAll(ctx, startTime)
	case <-finished:
		startTime, in, r.cleanupNeeded = time.Now(), InputHousekeeping, true
		uids := r.cfg.Workers.DrainFinished()
		r.retryAt = r.cfg.Handler.Revisit(uids)
		r.startCleanup(func(c Cleaner) cleanupResult { return cleanupResult{recreated: c.CleanupFinished(ctx, uids)} })
	case result := <-r.cleanupDone:
		startTime, in = time.Now(), InputHousekeeping
		r.cleaningUp = false
		r.setCleanupSince(time.Time{})
		r.cleanupNeeded = r.cleanupNeeded || !result.settled
		if len(result.recreated) > 0 {
			r.retrySoon(startTime) // they may be rejected
		}
		r.cfg.Handler.HandlePodRecreations(result.recreated)
	case c := <-r.checks:
		startTime, in = time.Now(), InputRuntime
		r.health.record(c)
	}
	return startTime, in, true
}

// retrySoon has the next housekeeping call Handler.Revisit, which then returns the time of the call after it.
func (r *runner) retrySoon(now time.Time) {
	if r.retryAt.IsZero() || now.Before(r.retryAt) {
		r.retryAt = now
	}
}

// handleEvents requeues each pod with an event once.
func (r *runner) handleEvents(events []pleg.Event) {
	var last types.UID
	for _, e := range events {
		// The removal of an exited container requires no action, and the removal of a
		// running one is reported as its death. Events are grouped by pod.
		if e.Type == pleg.ContainerRemoved || e.UID == last {
			continue
		}
		last = e.UID
		r.requeue(e.UID, podworkers.RequeueEvent)
	}
}

// handleProbeResults requeues each pod with a changed probe result once.
func (r *runner) handleProbeResults(changes []probe.ResultChange) {
	for i, c := range changes { // grouped by pod
		if i == 0 || c.UID != changes[i-1].UID {
			r.requeue(c.UID, podworkers.RequeueNow)
		}
	}
}

// cleanUpAll starts a cleanup of all pods, if there is a reason for one or the last was
// long ago.
func (r *runner) cleanUpAll(ctx context.Context, now time.Time) {
	if !r.cleanupNeeded && now.Sub(r.lastCleanupAt) < r.cfg.IdleHousekeepingPeriod {
		return
	}
	if r.startCleanup(func(c Cleaner) cleanupResult {
		recreated, settled := c.CleanupPods(ctx)
		return cleanupResult{recreated, settled}
	}) {
		r.cleanupNeeded, r.lastCleanupAt = false, now
	}
}

// startCleanup starts a cleanup in a goroutine, unless one runs.
func (r *runner) startCleanup(work func(Cleaner) cleanupResult) (started bool) {
	if r.cfg.Cleaner == nil || !r.health.ready || r.cleaningUp {
		return false
	}
	r.cleaningUp = true
	r.setCleanupSince(time.Now())
	r.wg.Go(func() {
		var result cleanupResult
		safe.Do(r.cfg.Logger, "housekeeping", func() { result = work(r.cfg.Cleaner) })
		r.cleanupDone <- result
	})
	return true
}

func (l *Loop) setCleanupSince(since time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cleanupSince = since
}

// endIteration records the health of the loop, and pauses requeues while the runtime is
// not ready.
func (r *runner) endIteration() {
	now := time.Now()
	var runtimeErr error
	if r.cfg.RuntimeState == nil {
		r.health.ready = true
	} else {
		runtimeErr = r.health.evaluate(now, r.cfg.RuntimeSyncThreshold)
	}
	if r.lastLoggedReady != r.health.ready {
		r.lastLoggedReady = r.health.ready
		if r.health.ready {
			r.cfg.Logger.Info("runtime ready")
		} else {
			r.cfg.Logger.Warn("runtime not ready", logattr.Err(runtimeErr))
		}
		if h := r.cfg.Hooks.RuntimeReadyChanged; h != nil {
			h(runtimeErr)
		}
	}
	if r.cfg.Workers != nil && r.paused == r.health.ready {
		r.paused = !r.health.ready
		r.cfg.Workers.PauseRequeues(r.paused)
	}
	r.scheduleHousekeeping(now)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.iterationAt, r.runtimeErr = now, runtimeErr
}

// Healthy returns nil if iterations end, pods are requeued on time and cleanups end.
// Its error wraps ErrStalled if the last iteration is too old, a pod has been due for
// too long or a cleanup runs for too long, and ErrRuntimeNotReady while the loop waits
// for the runtime.
func (l *Loop) Healthy() error {
	overdue := 0
	if l.cfg.Workers != nil {
		overdue = l.cfg.Workers.OverduePods(maxIterationAge)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	age := now.Sub(l.iterationAt)
	switch {
	case l.iterationAt.IsZero():
		return fmt.Errorf("%w: Run was not called", ErrStalled)
	case age > maxIterationAge:
		return fmt.Errorf("%w: last iteration ended %s ago", ErrStalled, age.Round(time.Second))
	case l.runtimeErr != nil:
		return l.runtimeErr
	case overdue > 0:
		return fmt.Errorf("%w: pods due for more than %s: %d", ErrStalled, maxIterationAge, overdue)
	}
	if duration := now.Sub(l.cleanupSince); !l.cleanupSince.IsZero() && duration > maxIterationAge {
		return fmt.Errorf("%w: housekeeping began %s ago and has not ended", ErrStalled, duration.Round(time.Second))
	}
	return nil
}

// LastIteration returns when the last iteration of the loop ended, or the zero time if
// there was none.
func (l *Loop) LastIteration() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.iterationAt
}
