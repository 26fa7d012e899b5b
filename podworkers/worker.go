package podworkers

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/internal/safe"
	"github.com/sublet-dev/agent/runtime"
)

// ErrSyncerPanicked is wrapped by the error of a turn in which the Syncer panicked.
var ErrSyncerPanicked = errors.New("the syncer panicked")

// launch gives a pod that wants a turn a goroutine if it has none. The caller
// holds mu.
func (w *Workers) launch(uid types.UID) {
	l := w.book.pods[uid]
	if w.ctx == nil || w.stopped || l == nil || !l.shouldStartSync() {
		return
	}
	if _, ok := w.active[uid]; ok {
		return
	}
	w.active[uid] = nil
	w.wg.Go(func() { w.work(uid) })
}

// work takes the turns of one pod, one after another, as long as it wants any.
func (w *Workers) work(uid types.UID) {
	for {
		ctx, t, ok := w.next(uid)
		if !ok {
			return
		}
		out, err := w.runSync(ctx, t)
		w.completeSync(t, out, err)
	}
}

// next begins the pod's next turn, or lets go of its goroutine.
func (w *Workers) next(uid types.UID) (context.Context, SyncCall, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.stopped {
		if t, ok := w.book.start(uid); ok {
			ctx, cancel := context.WithCancelCause(w.ctx)
			w.active[uid] = cancel
			for noted := w.noted; w.told < noted; { // a turn begins when what led to it was told
				w.allTold.Wait()
			}
			return ctx, t, true
		}
	}
	delete(w.active, uid)
	return nil, SyncCall{}, false
}

// completeSync notes what a turn came to, and tells those who want to know.
func (w *Workers) completeSync(t SyncCall, out runtime.SyncResult, err error) {
	w.mu.Lock()
	w.active[t.UID](nil)
	w.active[t.UID] = nil
	effects := w.book.end(t, out, err, time.Now())
	w.apply(effects)
	w.settle(t.UID)
	l := w.book.pods[t.UID]
	rests, stopped := l == nil || !l.shouldStartSync(), w.stopped
	w.mu.Unlock()

	if rests && !stopped {
		if effects[0].inspect && w.cfg.RequestInspection != nil {
			safe.Do(w.cfg.Logger, "ask for an inspection", func() { w.cfg.RequestInspection(t.UID) })
		}
		if w.cfg.OnIdle != nil {
			safe.Do(w.cfg.Logger, "tell of the end of a turn", func() { w.cfg.OnIdle(t.UID) })
		}
	}
	w.deliver()
}

// runSync makes the call that a turn consists of.
func (w *Workers) runSync(ctx context.Context, t SyncCall) (out runtime.SyncResult, err error) {
	began := time.Now()
	if h := w.cfg.Hooks.SyncStarted; h != nil {
		h(t)
	}
	defer func() {
		if p := recover(); p != nil {
			out, err = runtime.SyncResult{}, w.panicked(t, p)
		}
		if err != nil && ctx.Err() == nil {
			w.cfg.Logger.Warn("turn of pod failed", slog.String("uid", string(t.UID)),
				slog.String("namespace", t.Pod.Namespace), slog.String("pod", t.Pod.Name),
				slog.String("phase", t.Phase.String()), slog.Any("error", err))
		}
		if h := w.cfg.Hooks.SyncEnded; h != nil {
			h(t, time.Since(began), out, err)
		}
	}()
	return w.call(ctx, t)
}

func (w *Workers) call(ctx context.Context, t SyncCall) (runtime.SyncResult, error) {
	if t.Phase != Syncing && t.Phase != Terminating {
		return runtime.SyncResult{}, w.cfg.Syncer.Finish(ctx, t.Pod, t.Termination)
	}
	seen, err := w.cfg.Inspector.GetNewerThan(ctx, t.UID, t.NewerThan)
	if err != nil {
		return runtime.SyncResult{}, fmt.Errorf("look at pod %s: %w", t.UID, err)
	}
	if t.Phase == Syncing {
		return w.cfg.Syncer.Sync(ctx, t.Pod, seen)
	}
	return runtime.SyncResult{}, w.cfg.Syncer.Terminate(ctx, t.Pod, seen, t.Termination)
}

func (w *Workers) panicked(t SyncCall, value any) error {
	w.cfg.Logger.Error("syncer panicked", slog.String("uid", string(t.UID)),
		slog.String("namespace", t.Pod.Namespace), slog.String("pod", t.Pod.Name),
		slog.Any("panic", value), slog.String("stack", string(debug.Stack())))
	if h := w.cfg.Hooks.SyncPanicked; h != nil {
		h(t, value)
	}
	return fmt.Errorf("%w: %v", ErrSyncerPanicked, value)
}

// schedule has passed on when a pod is due. The caller holds mu.
func (w *Workers) schedule(uid types.UID) {
	var at time.Time
	if l := w.book.pods[uid]; l != nil {
		at = l.requeueAt
	}
	if !w.ownTimers {
		w.note(callback{uid: uid, due: &at})
		return
	}
	if t := w.timers[uid]; t != nil {
		t.Stop()
		delete(w.timers, uid)
	}
	if !at.IsZero() && !w.stopped {
		w.timers[uid] = time.AfterFunc(time.Until(at), func() { w.Requeue(uid, RequeueDue) })
	}
}
