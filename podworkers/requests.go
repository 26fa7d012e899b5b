package podworkers

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/internal/safe"
	"github.com/sublet-dev/agent/runtime"
)

// Update hands a request to the worker of its pod, which begins with it at once
// or, when it is busy, after its turn. It does not block. An Update without a Pod
// and an Orphan does nothing.
func (w *Workers) Update(u Update) {
	uid := u.uid()
	if uid == "" {
		w.failKill(u.Kill, fmt.Errorf("update without a pod: %w", runtime.ErrInvalid))
		return
	}
	gone := u.Pod != nil && terminal(u.Pod) && w.cfg.IsStopped != nil && w.cfg.IsStopped(uid)
	w.handleUpdate(uid, u.Kill, func() []effect { return w.book.update(u, gone, time.Now()) })
}

// RequestKill ends a pod that is known. It does not block; k.Done tells when it is done.
func (w *Workers) RequestKill(uid types.UID, k KillOptions) {
	w.handleUpdate(uid, &k, func() []effect {
		l := w.book.pods[uid]
		if l == nil {
			return nil
		}
		return w.book.startNextStaticPod(l.kill(k, time.Now()))
	})
}

// Kill ends a pod that is known and waits for what k.Done waits for, or for the
// end of ctx. The pod ends nonetheless.
func (w *Workers) Kill(ctx context.Context, uid types.UID, k KillOptions) error {
	told := make(chan error, 1)
	done := k.Done
	k.Done = func(err error) {
		if done != nil {
			done(err)
		}
		told <- err
	}
	w.RequestKill(uid, k)
	select {
	case err := <-told:
		return err
	case <-ctx.Done():
		return fmt.Errorf("wait for the end of pod %s: %w", uid, context.Cause(ctx))
	}
}

// Requeue asks for another look at a pod, which it gives if the pod is known and not
// finished. It does not block.
func (w *Workers) Requeue(uid types.UID, why RequeueReason) {
	w.handleUpdate(uid, nil, func() []effect { return w.book.requeue(uid, why, time.Now()) })
}

// handleUpdate applies a change to the book and lets the world know.
func (w *Workers) handleUpdate(uid types.UID, k *KillOptions, change func() []effect) {
	w.mu.Lock()
	if w.stopped {
		w.mu.Unlock()
		w.failKill(k, ErrStopped)
		return
	}
	if k != nil && k.Done != nil {
		w.waiting[uid] = append(w.waiting[uid], *k)
	}
	w.apply(change())
	w.settle(uid)
	w.mu.Unlock()
	w.deliver()
}

func (w *Workers) failKill(k *KillOptions, err error) {
	if k != nil && k.Done != nil {
		safe.Do(w.cfg.Logger, "tell of a kill", func() { k.Done(err) })
	}
}

// callback is what is to be told once the lock is let go: one of these.
type callback struct {
	uid      types.UID
	moved    *effect
	due      *time.Time
	kill     *KillOptions
	err      error // for kill
	finished bool
}

// deliver tells what is to be told, in the order in which it came about, and calls
// nobody under the lock. What comes about meanwhile, by the hand of whoever is told
// as well, is told by whoever is at it.
func (w *Workers) deliver() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.delivering {
		return
	}
	w.delivering = true
	for len(w.notices) > 0 {
		notices := w.notices
		w.notices = nil
		w.mu.Unlock()
		for i := range notices {
			n := &notices[i]
			safe.Do(w.cfg.Logger, "tell of pod "+string(n.uid), func() { w.runCallbacks(n) })
		}
		w.mu.Lock()
		w.told += uint64(len(notices))
		w.allTold.Broadcast()
	}
	w.delivering = false
}

// note has something told once the lock, which the caller holds, is let go.
func (w *Workers) note(n callback) {
	w.notices = append(w.notices, n)
	w.noted++
}

func (w *Workers) runCallbacks(n *callback) {
	switch {
	case n.moved != nil:
		w.cfg.Hooks.PhaseChanged(n.uid, n.moved.from, n.moved.to, n.moved.cause)
	case n.due != nil:
		w.cfg.OnRequeue(n.uid, *n.due)
	case n.kill != nil:
		n.kill.Done(n.err)
	case n.finished:
		w.cfg.OnFinished(n.uid)
	}
}

// apply carries effects out but for what has to wait until mu, which the caller
// holds, is let go: see deliver.
func (w *Workers) apply(effects []effect) {
	for i := range effects {
		e := &effects[i]
		if e.moved && w.cfg.Hooks.PhaseChanged != nil {
			w.note(callback{uid: e.uid, moved: e})
		}
		if cancel := w.active[e.uid]; e.cancel != nil && cancel != nil {
			cancel(e.cancel)
		}
		if e.due {
			w.schedule(e.uid)
		}
		if e.killed || e.done {
			w.settle(e.uid)
		}
		if (e.done || e.deletedAfterFinish) && w.cfg.OnFinished != nil {
			w.note(callback{uid: e.uid, finished: true})
		}
		w.launch(e.uid)
	}
}

// settle collects the waiters of a pod whose time has come. The caller holds mu.
func (w *Workers) settle(uid types.UID) {
	owed := w.waiting[uid]
	if len(owed) == 0 {
		return
	}
	told := func(k *KillOptions, err error) { w.note(callback{uid: uid, kill: k, err: err}) }
	l := w.book.pods[uid]
	rest := owed[:0:0]
	for _, k := range owed {
		switch {
		case l == nil && w.book.hasTombstone(uid):
			told(&k, nil)
		case l == nil:
			told(&k, fmt.Errorf("end pod %s: %w", uid, runtime.ErrNotFound))
		case l.phase == Finished && (!l.termination.Deleted || l.resourcesReleased), l.phase > Terminating && !k.WaitUntilFinished:
			told(&k, nil)
		default:
			rest = append(rest, k)
		}
	}
	if len(rest) == 0 {
		delete(w.waiting, uid)
	} else {
		w.waiting[uid] = rest
	}
}

// jitter returns a function that lengthens by up to a share.
func jitter(share float64) func(time.Duration) time.Duration {
	return func(d time.Duration) time.Duration {
		return d + time.Duration(rand.Float64()*share*float64(d)) //nolint:gosec // spreads load, guards nothing
	}
}
