package podworkers

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/internal/safe"
	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/runtime"
)

// Update passes a request to the worker of its pod, which handles it at once or,
// if a call is under way, after that call. It does not block. An Update with
// neither Pod nor Orphan does nothing.
func (w *Workers) Update(u Update) {
	uid := u.uid()
	if uid == "" {
		w.failKill(u.Kill, fmt.Errorf("update has neither Pod nor Orphan: %w", runtime.ErrInvalid))
		return
	}
	mayBeStopped := u.Orphan != nil || podspec.IsTerminalPhase(u.Pod.Status.Phase)
	stopped := mayBeStopped && !w.isRunning(uid)
	w.handleUpdate(uid, u.Kill, func() []effect { return w.tracker.update(u, stopped, time.Now()) })
}

// isRunning asks the Inspector. A pod counts as running if that panics.
func (w *Workers) isRunning(uid types.UID) bool {
	running := true
	safe.Do(w.cfg.Logger, "check whether the pod is running", func() { running = w.cfg.Inspector.IsRunning(uid) })
	return running
}

// RequestKill terminates a known pod. It does not block; k.Done reports the
// result.
func (w *Workers) RequestKill(uid types.UID, k KillOptions) {
	w.handleUpdate(uid, &k, func() []effect {
		s := w.tracker.pods[uid]
		if s == nil {
			return nil
		}
		return w.tracker.startNextStaticPod(s.kill(k, time.Now()))
	})
}

// Kill terminates a known pod and waits until k.Done is called or ctx is done. The
// pod is terminated in both cases.
func (w *Workers) Kill(ctx context.Context, uid types.UID, k KillOptions) error {
	result := make(chan error, 1)
	done := k.Done
	k.Done = func(err error) {
		if done != nil {
			done(err)
		}
		result <- err
	}
	w.RequestKill(uid, k)
	select {
	case err := <-result:
		return err
	case <-ctx.Done():
		return fmt.Errorf("wait for termination of pod %s: %w", uid, context.Cause(ctx))
	}
}

// Requeue makes a known pod that has not finished due for another call. It does
// not block.
func (w *Workers) Requeue(uid types.UID, reason RequeueReason) {
	w.handleUpdate(uid, nil, func() []effect { return w.tracker.requeue(uid, reason, time.Now()) })
}

// handleUpdate changes the tracker and carries out the effects.
func (w *Workers) handleUpdate(uid types.UID, k *KillOptions, change func() []effect) {
	w.mu.Lock()
	if w.stopped {
		w.mu.Unlock()
		w.failKill(k, ErrStopped)
		return
	}
	if k != nil && k.Done != nil {
		w.killWaiters[uid] = append(w.killWaiters[uid], *k)
	}
	w.apply(change())
	w.notifyKillWaiters(uid) // also without effects, if the pod is unknown
	w.mu.Unlock()
	w.deliver()
}

// apply carries out effects. Callbacks are only queued, because the caller holds
// mu: see deliver.
func (w *Workers) apply(effects []effect) {
	for i := range effects {
		e := &effects[i]
		if e.phaseChanged {
			if s := w.tracker.pods[e.uid]; s != nil {
				e.termination = s.termination
			}
			w.addCallback(callback{uid: e.uid, phaseChange: e})
		}
		if cancel := w.active[e.uid]; e.cancel != nil && cancel != nil {
			cancel(e.cancel)
		}
		if e.requeue {
			w.schedule(e.uid)
		}
		w.notifyKillWaiters(e.uid)
		if e.finished || e.deletedAfterFinish {
			w.addCallback(callback{uid: e.uid, finished: true})
		}
		w.launch(e.uid)
	}
}

// notifyKillWaiters queues the Done of the kills of a pod that are complete. The
// caller holds mu.
func (w *Workers) notifyKillWaiters(uid types.UID) {
	waiters := w.killWaiters[uid]
	if len(waiters) == 0 {
		return
	}
	notify := func(k *KillOptions, err error) { w.addCallback(callback{uid: uid, kill: k, err: err}) }
	s := w.tracker.pods[uid]
	rest := waiters[:0:0]
	for _, k := range waiters {
		switch {
		case s == nil && w.tracker.hasTombstone(uid):
			notify(&k, nil)
		case s == nil:
			notify(&k, fmt.Errorf("kill pod %s: %w", uid, runtime.ErrNotFound))
		case s.phase == Finished && (!s.termination.Deleted || s.resourcesReleased), s.phase > Terminating && !k.WaitUntilFinished:
			notify(&k, nil)
		default:
			rest = append(rest, k)
		}
	}
	if len(rest) == 0 {
		delete(w.killWaiters, uid)
	} else {
		w.killWaiters[uid] = rest
	}
}

// jitter returns a function that lengthens a duration by up to the given share.
func jitter(share float64) func(time.Duration) time.Duration {
	return func(d time.Duration) time.Duration {
		return d + time.Duration(rand.Float64()*share*float64(d)) //nolint:gosec // spreads load, guards nothing
	}
}
