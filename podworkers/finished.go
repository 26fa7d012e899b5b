package podworkers

import (
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/internal/notify"
)

// NotifyFinished returns a channel with one slot that is filled when DrainFinished
// has pods to return. It must have one reader only. Pods that finish before its
// first call are not recorded.
func (w *Workers) NotifyFinished() <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.recordFinished = true
	return w.finishedCh
}

// DrainFinished returns the pods for which Hooks.PodFinished was due since its last
// call, so that what they have left can be removed. It does not block.
func (w *Workers) DrainFinished() []types.UID {
	w.mu.Lock()
	defer w.mu.Unlock()
	finished := w.finished
	w.finished = nil
	return finished
}

func (w *Workers) addFinished(uid types.UID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.recordAsFinished(uid)
}

// recordAsFinished has DrainFinished return a pod. The caller holds mu.
func (w *Workers) recordAsFinished(uid types.UID) {
	if !w.recordFinished {
		return
	}
	w.finished = append(w.finished, uid)
	notify.Send(w.finishedCh)
}
