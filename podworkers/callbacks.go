package podworkers

import (
	"log/slog"

	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/internal/logattr"
	"github.com/sublet-dev/agent/internal/safe"
)

// callback is a call of a function of the user that waits until mu is released.
// One of phaseChange, kill and finished is set.
type callback struct {
	uid         types.UID
	phaseChange *effect
	kill        *KillOptions
	err         error // for kill
	finished    bool
}

// addCallback queues a callback. The caller holds mu and calls deliver after it
// has released mu.
func (w *Workers) addCallback(c callback) {
	w.callbacks = append(w.callbacks, c)
	w.callbacksAdded++
}

// deliver runs the queued callbacks in order without holding mu. One goroutine
// runs them at a time: callbacks that are queued meanwhile, also by callbacks, are
// run by that goroutine.
func (w *Workers) deliver() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.delivering {
		return
	}
	w.delivering = true
	for len(w.callbacks) > 0 {
		callbacks := w.callbacks
		w.callbacks = nil
		w.mu.Unlock()
		for i := range callbacks {
			c := &callbacks[i]
			safe.Do(w.cfg.Logger, "callback for pod "+string(c.uid), func() { w.runCallback(c) })
		}
		w.mu.Lock()
		w.callbacksRun += uint64(len(callbacks))
		w.callbacksChanged.Broadcast()
	}
	w.delivering = false
}

// awaitCallbacks waits until the callbacks that are queued now have run. The
// caller holds mu, which is released meanwhile.
func (w *Workers) awaitCallbacks() {
	for added := w.callbacksAdded; w.callbacksRun < added; {
		w.callbacksChanged.Wait()
	}
}

func (w *Workers) runCallback(c *callback) {
	switch {
	case c.phaseChange != nil:
		w.logPhase(c.phaseChange)
		if h := w.cfg.Hooks.PhaseChanged; h != nil {
			h(c.uid, c.phaseChange.from, c.phaseChange.to, c.phaseChange.cause)
		}
	case c.kill != nil:
		c.kill.Done(c.err)
	case c.finished:
		w.addFinished(c.uid)
		if h := w.cfg.Hooks.PodFinished; h != nil {
			h(c.uid)
		}
	}
}

// failKill calls the Done of a kill that cannot be handled.
func (w *Workers) failKill(k *KillOptions, err error) {
	if k != nil && k.Done != nil {
		safe.Do(w.cfg.Logger, "callback for a kill", func() { k.Done(err) })
	}
}

// logPhase logs the start of a phase at Info.
func (w *Workers) logPhase(e *effect) {
	reason := e.termination.Reason
	if reason == "" {
		reason = e.cause.String()
	}
	pod, uid, why := logattr.Pod(e.pod), logattr.PodUID(e.uid), slog.String("reason", reason)
	switch e.to {
	case Terminating:
		w.cfg.Logger.Info("pod terminating", pod, uid, why, slog.Duration("gracePeriod", e.termination.GracePeriod))
	case Terminated:
		w.cfg.Logger.Info("pod terminated", pod, uid, why)
	case Finished:
		w.cfg.Logger.Info("pod finished", pod, uid, why)
	case Syncing: // the first phase, which no pod moves to
	}
}
