package status

import (
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/internal/safe"
)

// push queues a pod that has not failed, from now on. Manager.mu is held.
func (l *sinkQueue) push(it *queuedPod) {
	it.since = time.Now()
	if d := l.delay(it.uid); d > 0 {
		it.due = it.since.Add(d)
		it.merging = l.merging.Push(it)
		return
	}
	l.ready.Push(it)
}

// delay is how long the pod's status may wait for a newer one: only the first one of a pod
// waits, since else the sink has one that is wrong. Manager.mu is held.
func (l *sinkQueue) delay(uid types.UID) (d time.Duration) {
	e := l.m.entries[uid]
	if l.delayer == nil || l.draining || e == nil || e.forgotten || e.sent[l.n].version > 0 {
		return 0
	}
	safe.Do(l.m.cfg.Logger, "get the delay of a status", func() { d = l.delayer.Delay(e.status) })
	return d
}

// endMerging has a pod sent that waited for a newer status. From now on it is the sink that
// is waited for. Manager.mu is held.
func (l *sinkQueue) endMerging(it *queuedPod) {
	l.merging.Remove(it.merging)
	it.merging, it.since = nil, time.Now()
	l.ready.Push(it)
}
