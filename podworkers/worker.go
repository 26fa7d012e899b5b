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

// ErrPanic is wrapped by the error of a turn in which the Syncer panicked.
var ErrPanic = errors.New("the syncer panicked")

// launch gives a pod that wants a turn a goroutine if it has none. The caller
// holds mu.
func (w *Workers) launch(uid types.UID) {
	l := w.book.lives[uid]
	if w.ctx == nil || w.stopped || l == nil || !l.ready() {
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
		out, err := w.turn(ctx, t)
		w.ended(t, out, err)
	}
}

// next begins the pod's next turn, or lets go of its goroutine.
func (w *Workers) next(uid types.UID) (context.Context, Turn, bool) {
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
	return nil, Turn{}, false
}

// ended notes what a turn came to, and tells those who want to know.
func (w *Workers) ended(t Turn, out runtime.Outcome, err error) {
	w.mu.Lock()
	w.active[t.UID](nil)
	w.active[t.UID] = nil
	effects := w.book.end(t, out, err, time.Now())
	w.apply(effects)
	w.settle(t.UID)
	l := w.book.lives[t.UID]
	rests, stopped := l == nil || !l.ready(), w.stopped
	w.mu.Unlock()

	if rests && !stopped {
		if effects[0].look && w.cfg.Inspect != nil {
			safe.Do(w.cfg.Logger, "ask for an inspection", func() { w.cfg.Inspect(t.UID) })
		}
		if w.cfg.TurnEnded != nil {
			safe.Do(w.cfg.Logger, "tell of the end of a turn", func() { w.cfg.TurnEnded(t.UID) })
		}
	}
	w.deliver()
}

// turn makes the call that a turn consists of.
func (w *Workers) turn(ctx context.Context, t Turn) (out runtime.Outcome, err error) {
	began := time.Now()
	if h := w.cfg.Hooks.Started; h != nil {
		h(t)
	}
	defer func() {
		if p := recover(); p != nil {
			out, err = runtime.Outcome{}, w.panicked(t, p)
		}
		if err != nil && ctx.Err() == nil {
			w.cfg.Logger.Warn("turn of pod failed", slog.String("uid", string(t.UID)),
				slog.String("namespace", t.Pod.Namespace), slog.String("pod", t.Pod.Name),
				slog.String("phase", t.Phase.String()), slog.Any("error", err))
		}
		if h := w.cfg.Hooks.Ended; h != nil {
			h(t, time.Since(began), out, err)
		}
	}()
	return w.call(ctx, t)
}

func (w *Workers) call(ctx context.Context, t Turn) (runtime.Outcome, error) {
	if t.Phase != Syncing && t.Phase != Terminating {
		return runtime.Outcome{}, w.cfg.Syncer.Finish(ctx, t.Pod, t.Ending)
	}
	seen, err := w.cfg.Seen.NewerThan(ctx, t.UID, t.Since)
	if err != nil {
		return runtime.Outcome{}, fmt.Errorf("look at pod %s: %w", t.UID, err)
	}
	if t.Phase == Syncing {
		return w.cfg.Syncer.Sync(ctx, t.Pod, seen)
	}
	return runtime.Outcome{}, w.cfg.Syncer.Terminate(ctx, t.Pod, seen, t.Ending)
}

func (w *Workers) panicked(t Turn, value any) error {
	w.cfg.Logger.Error("syncer panicked", slog.String("uid", string(t.UID)),
		slog.String("namespace", t.Pod.Namespace), slog.String("pod", t.Pod.Name),
		slog.Any("panic", value), slog.String("stack", string(debug.Stack())))
	if h := w.cfg.Hooks.Panicked; h != nil {
		h(t, value)
	}
	return fmt.Errorf("%w: %v", ErrPanic, value)
}

// schedule has passed on when a pod is due. The caller holds mu.
func (w *Workers) schedule(uid types.UID) {
	var at time.Time
	if l := w.book.lives[uid]; l != nil {
		at = l.due
	}
	if !w.alone {
		w.note(notice{uid: uid, due: &at})
		return
	}
	if t := w.timers[uid]; t != nil {
		t.Stop()
		delete(w.timers, uid)
	}
	if !at.IsZero() && !w.stopped {
		w.timers[uid] = time.AfterFunc(time.Until(at), func() { w.Wake(uid, WakeDue) })
	}
}
