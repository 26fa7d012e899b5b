package podworkers

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/runtime"
)

// Update hands a request to the worker of its pod, which begins with it at once
// or, when it is busy, after its turn. It does not block. An Update without a Pod
// and an Orphan does nothing.
func (w *Workers) Update(u Update) {
	uid := u.uid()
	if uid == "" {
		w.refuse(u.Kill, fmt.Errorf("update without a pod: %w", runtime.ErrInvalid))
		return
	}
	gone := u.Pod != nil && terminal(u.Pod) && w.cfg.Ended != nil && w.cfg.Ended(uid)
	w.do(uid, u.Kill, func() []effect { return w.book.update(u, gone, time.Now()) })
}

// End ends a pod that is known. It does not block; k.Done tells when it is done.
func (w *Workers) End(uid types.UID, k Kill) {
	w.do(uid, &k, func() []effect {
		l := w.book.lives[uid]
		if l == nil {
			return nil
		}
		return w.book.spread(l.kill(k, time.Now()))
	})
}

// Kill ends a pod that is known and waits for what k.Done waits for, or for the
// end of ctx. The pod ends nonetheless.
func (w *Workers) Kill(ctx context.Context, uid types.UID, k Kill) error {
	told := make(chan error, 1)
	done := k.Done
	k.Done = func(err error) {
		if done != nil {
			done(err)
		}
		told <- err
	}
	w.End(uid, k)
	select {
	case err := <-told:
		return err
	case <-ctx.Done():
		return fmt.Errorf("wait for the end of pod %s: %w", uid, context.Cause(ctx))
	}
}

// Wake asks for another look at a pod, which it gives if the pod is known and not
// finished. It does not block.
func (w *Workers) Wake(uid types.UID, why Wake) {
	w.do(uid, nil, func() []effect { return w.book.nudge(uid, why, time.Now()) })
}

// do applies a change to the book and lets the world know.
func (w *Workers) do(uid types.UID, k *Kill, change func() []effect) {
	w.mu.Lock()
	if w.stopped {
		w.mu.Unlock()
		w.refuse(k, ErrStopped)
		return
	}
	if k != nil && k.Done != nil {
		w.waiting[uid] = append(w.waiting[uid], *k)
	}
	told := w.apply(change())
	told = append(told, w.settle(uid)...)
	w.mu.Unlock()
	w.tell(told)
}

func (w *Workers) refuse(k *Kill, err error) {
	if k != nil && k.Done != nil {
		k.Done(err)
	}
}

// notice is what is to be told once the lock is let go.
type notice struct {
	kill     *Kill
	err      error
	finished types.UID
}

func (w *Workers) tell(notices []notice) {
	for _, n := range notices {
		if n.kill != nil {
			n.kill.Done(n.err)
		}
		if n.finished != "" && w.cfg.Finished != nil {
			w.cfg.Finished(n.finished)
		}
	}
}

// apply carries effects out but for what has to wait until mu, which the caller
// holds, is let go.
func (w *Workers) apply(effects []effect) (told []notice) {
	for i := range effects {
		e := &effects[i]
		if h := w.cfg.Hooks.Moved; e.moved && h != nil {
			h(e.uid, e.from, e.to, e.why)
		}
		if cancel := w.active[e.uid]; e.cancel != nil && cancel != nil {
			cancel(e.cancel)
		}
		if e.due {
			w.schedule(e.uid)
		}
		if e.killed || e.done {
			told = append(told, w.settle(e.uid)...)
		}
		if e.done || e.freed {
			told = append(told, notice{finished: e.uid})
		}
		w.launch(e.uid)
	}
	return told
}

// settle collects the waiters of a pod whose time has come. The caller holds mu.
func (w *Workers) settle(uid types.UID) (told []notice) {
	owed := w.waiting[uid]
	if len(owed) == 0 {
		return nil
	}
	l := w.book.lives[uid]
	rest := owed[:0:0]
	for _, k := range owed {
		switch {
		case l == nil && w.book.buried(uid):
			told = append(told, notice{kill: &k})
		case l == nil:
			err := fmt.Errorf("end pod %s: %w", uid, runtime.ErrNotFound)
			told = append(told, notice{kill: &k, err: err})
		case l.phase == Finished && (!l.ending.Deleted || l.released), l.phase > Terminating && !k.Reclaimed:
			told = append(told, notice{kill: &k})
		default:
			rest = append(rest, k)
		}
	}
	if len(rest) == 0 {
		delete(w.waiting, uid)
	} else {
		w.waiting[uid] = rest
	}
	return told
}

// jitter returns a function that lengthens by up to a share.
func jitter(share float64) func(time.Duration) time.Duration {
	return func(d time.Duration) time.Duration {
		return d + time.Duration(rand.Float64()*share*float64(d)) //nolint:gosec // spreads load, guards nothing
	}
}
