package podworkers

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/internal/logattr"
	"github.com/sublet-dev/agent/internal/safe"
	"github.com/sublet-dev/agent/runtime"
)

// ErrSyncerPanicked is wrapped by the error of a call in which the Syncer panicked.
var ErrSyncerPanicked = errors.New("syncer panicked")

// launch starts a goroutine for a pod that is due and has none. The caller holds
// mu.
func (w *Workers) launch(uid types.UID) {
	if w.claim(uid) {
		w.wg.Go(func() { w.work(uid) })
	}
}

// claim reports whether a pod is due and no goroutine works on it. Then the caller, who
// holds mu, has a goroutine call work.
func (w *Workers) claim(uid types.UID) bool {
	s := w.tracker.pods[uid]
	if w.ctx == nil || w.stopped || s == nil || !s.shouldStartSync() {
		return false
	}
	if _, ok := w.active[uid]; ok {
		return false
	}
	w.active[uid] = nil
	return true
}

// work makes the calls of one pod, one after another, until none is due.
func (w *Workers) work(uid types.UID) {
	for {
		ctx, call, ok := w.next(uid)
		if !ok {
			return
		}
		if o := w.cfg.Observer; o != nil {
			safe.Do(w.cfg.Logger, "report the start of a sync", func() { o.SyncStarted(uid) })
		}
		result, err := w.runSync(ctx, call)
		w.completeSync(ctx, call, result, err)
	}
}

// next begins the pod's next call. It reports false if none is due, and the
// goroutine must end.
func (w *Workers) next(uid types.UID) (context.Context, SyncCall, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.stopped {
		if call, ok := w.tracker.start(uid); ok {
			ctx, cancel := context.WithCancelCause(w.ctx)
			w.active[uid] = cancel
			w.schedule(uid)    // the call replaces the requeue
			w.awaitCallbacks() // those of the changes that led to this call
			return ctx, call, true
		}
	}
	delete(w.active, uid)
	return nil, SyncCall{}, false
}

// completeSync records and logs the result of a call and runs the callbacks.
func (w *Workers) completeSync(ctx context.Context, call SyncCall, result runtime.SyncResult, err error) {
	cancelled, failure, repeated := err != nil && ctx.Err() != nil, "", false // a cancelled call is not a failure
	if err != nil {
		failure = call.Phase.String() + ": " + err.Error()
	}
	w.mu.Lock()
	if s := w.tracker.pods[call.UID]; s != nil && !cancelled {
		repeated, s.lastFailure = failure == s.lastFailure, failure
	}
	w.active[call.UID](nil)
	w.active[call.UID] = nil
	effects := w.tracker.complete(call, result, err, time.Now())
	w.apply(effects)
	s := w.tracker.pods[call.UID]
	pauses, stopped := s == nil || !s.shouldStartSync(), w.stopped
	w.mu.Unlock()

	if err != nil && !cancelled {
		w.logFailure(call, err, repeated)
	}
	if o := w.cfg.Observer; o != nil && pauses && !stopped {
		safe.Do(w.cfg.Logger, "report the end of a sync", func() { o.SyncEnded(call.UID, effects[0].inspect) })
	}
	w.deliver()
}

// logFailure logs a failed call, at Debug if the call before it failed with the same error.
func (w *Workers) logFailure(call SyncCall, err error, repeated bool) {
	level := slog.LevelWarn
	if repeated {
		level = slog.LevelDebug
	}
	w.cfg.Logger.LogAttrs(w.ctx, level, "pod sync failed", logattr.Pod(call.Pod), logattr.PodUID(call.UID),
		slog.String("phase", call.Phase.String()), logattr.Err(err))
}

// runSync makes a call.
func (w *Workers) runSync(ctx context.Context, call SyncCall) (result runtime.SyncResult, err error) {
	startTime := time.Now()
	if h := w.cfg.Hooks.SyncStarted; h != nil {
		ctx = h(ctx, call)
	}
	defer func() {
		if p := recover(); p != nil {
			result, err = runtime.SyncResult{}, w.handlePanic(call, p)
		}
		if h := w.cfg.Hooks.SyncEnded; h != nil {
			h(ctx, call, time.Since(startTime), result, err)
		}
	}()
	return w.callSyncer(ctx, call)
}

func (w *Workers) callSyncer(ctx context.Context, call SyncCall) (runtime.SyncResult, error) {
	if call.Phase != Syncing && call.Phase != Terminating {
		return runtime.SyncResult{}, w.cfg.Syncer.Finish(ctx, call.Pod, call.Termination)
	}
	observed, err := w.cfg.Inspector.GetNewerThan(ctx, call.UID, call.NewerThan)
	if err != nil {
		return runtime.SyncResult{}, fmt.Errorf("inspect pod %s: %w", call.UID, err)
	}
	if call.Phase == Syncing {
		return w.cfg.Syncer.Sync(ctx, call.Pod, observed)
	}
	return runtime.SyncResult{}, w.cfg.Syncer.Terminate(ctx, call.Pod, observed, call.Termination)
}

func (w *Workers) handlePanic(call SyncCall, value any) error {
	w.cfg.Logger.Error("pod sync panicked", logattr.Pod(call.Pod), logattr.PodUID(call.UID),
		slog.Any("panic", value), slog.String("stack", string(debug.Stack())))
	if h := w.cfg.Hooks.SyncPanicked; h != nil {
		h(call, value)
	}
	return fmt.Errorf("%w: %v", ErrSyncerPanicked, value)
}
