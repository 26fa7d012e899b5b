package cri

import (
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/runtime"
)

// removedFresh is how long after the removal of a pod an inspection may do without calls.
const removedFresh = 2 * time.Second

// setRemoved remembers for a moment that nothing is left of a pod: all that was observed of it was removed, and
// nothing was made since. What was known of it is dropped.
func (f *statusCache) setRemoved(observed runtime.Pod) {
	f.mu.Lock()
	defer f.mu.Unlock()
	uid := observed.UID
	if f.pods[uid].changedAt.After(observed.ObservedAt) {
		delete(f.pods, uid)
		return
	}
	f.stamp++
	stamp := f.stamp
	f.put(uid, podFacts{stamp: stamp, removed: true})
	time.AfterFunc(removedFresh, func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.pods[uid].stamp == stamp {
			delete(f.pods, uid)
		}
	})
}

// takeRemoved reports whether nothing is left of a pod, once. An event of a start says otherwise.
func (f *statusCache) takeRemoved(uid types.UID) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	k := f.pods[uid]
	if !k.removed || k.event != nil {
		return false
	}
	delete(f.pods, uid)
	return true
}
