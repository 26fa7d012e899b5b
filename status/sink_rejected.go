package status

import (
	"errors"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/internal/priority"
)

// ErrRejected is wrapped by the error of a Sink that is available and rejects the status that it was
// given, as an API server rejects an invalid one. The same status is sent again with a back-off of up
// to five minutes, a new one at once. The same error is logged once.
var ErrRejected = errors.New("status rejected")

// maxRejectedBackOff limits the back-off of a status that was rejected.
const maxRejectedBackOff = 5 * time.Minute

// rejection is what a sink rejected of a pod, since it last accepted a status of it.
type rejection struct {
	status   *corev1.PodStatus
	deletion bool                       // it was the last one, with a deletion after it
	text     string                     // of the error
	delayed  *priority.Item[*queuedPod] // in sinkQueue.delayed; nil: not there
}

// handleRejection has a rejected status wait, unless there is a newer one. Manager.mu is held.
func (l *sinkQueue) handleRejection(job *delivery, it *queuedPod, err error) {
	text := err.Error()
	job.quiet = it.rejection.text == text
	it.rejection = rejection{status: job.status, deletion: job.deletion, text: text}
	switch {
	case l.m.entries[it.uid] == nil:
		delete(l.items, it.uid)
	case !l.isRejected(it):
		it.failures = 0
		l.push(it)
	default:
		it.failures++
		it.due = time.Now().Add(l.backOff(it.failures, max(maxRejectedBackOff, l.m.cfg.MaxBackOff)))
		it.rejection.delayed = l.delayed.Push(it)
	}
}

// isRejected reports whether what would be sent of a pod is what was rejected. Manager.mu is held.
func (l *sinkQueue) isRejected(it *queuedPod) bool {
	e := l.m.entries[it.uid]
	return e != nil && e.status == it.rejection.status && l.isDeleted(e) == it.rejection.deletion
}

// answered notes that the sink is available. Manager.mu is held.
func (l *sinkQueue) answered() {
	if l.failures >= sinkDownThreshold {
		l.release() // all waiting pods may be sent
		l.probe = time.Time{}
	}
	l.failures = 0
}

// endRejection has a pod sent that has another status than the one that was rejected. Manager.mu is held.
func (l *sinkQueue) endRejection(it *queuedPod) {
	l.delayed.Remove(it.rejection.delayed)
	it.rejection.delayed = nil
	it.failures = 0
	l.push(it)
}
