// Package podcache stores the last observed state of each pod and the time of its
// inspection. It corresponds to the Cache in pkg/kubelet/container of the kubelet. The zero
// value of a [Cache] is ready to use.
//
// A pleg.Generator writes to a Cache and everything else reads from it. Freshness
// is per pod: a pod whose inspection fails does not make the state of another pod
// outdated. A Cache does not wait for anything. A reader that needs a state newer
// than a given time calls pleg.Generator.GetNewerThan, which also requests the
// inspection.
package podcache

import (
	"context"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/runtime"
)

// Entry is the last observed state of one pod.
type Entry struct {
	// Pod is the result of the last successful inspection. Until one has
	// succeeded, only its UID is set.
	Pod runtime.Pod
	// Err is the error of the last inspection, nil if it succeeded. If it is not
	// nil, Pod is older than InspectedAt.
	Err error
	// InspectedAt is when the last inspection began.
	InspectedAt time.Time
}

// Cache holds one Entry for each pod that was set and not deleted. The zero value
// is ready to use. All methods may be called concurrently and none blocks. Pods
// that are returned share memory with the Cache and must not be modified.
type Cache struct {
	mu      sync.RWMutex // guards the rest
	entries map[types.UID]*Entry
	changes uint64
}

// Set stores the result of an inspection that began at the given time. If err is
// not nil, the pod of the last successful inspection is kept. An inspection that
// began before the stored one is ignored.
func (c *Cache) Set(uid types.UID, p runtime.Pod, err error, at time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.entries[uid]
	switch {
	case e == nil:
		e = &Entry{Pod: runtime.Pod{UID: uid}}
		if c.entries == nil {
			c.entries = map[types.UID]*Entry{}
		}
		c.entries[uid] = e
	case at.Before(e.InspectedAt):
		return
	}
	c.changes++
	if err == nil {
		e.Pod = p
	}
	e.Err, e.InspectedAt = err, at
}

// Delete removes the pod. A later Set adds it again.
func (c *Cache) Delete(uid types.UID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.entries, uid)
	c.changes++
}

// Changes returns a number that is another one after each Set and Delete.
func (c *Cache) Changes() uint64 {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.changes
}

// Get returns the pod as the last successful inspection found it. It reports
// false if the pod is unknown.
func (c *Cache) Get(uid types.UID) (runtime.Pod, bool) {
	e, ok := c.Entry(uid)
	return e.Pod, ok
}

// Entry returns the pod together with the time and the error of its last
// inspection. It reports false if the pod is unknown.
func (c *Cache) Entry(uid types.UID) (Entry, bool) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	e, ok := c.entries[uid]
	if !ok {
		return Entry{}, false
	}
	return *e, true
}

// Lister returns the observed pods as a runtime does, from memory, so that garbage
// collection costs the runtime no call. An exited container stays exited: an old state
// only removes it later.
type Lister struct{ Cache *Cache }

// Pods returns the pods of the cache. It does not block.
func (l Lister) Pods(context.Context) ([]runtime.Pod, error) { return l.Cache.Pods(), nil }

// Changes returns a number that stays the same as long as Pods would return the same. It does not
// block.
func (l Lister) Changes() uint64 { return l.Cache.Changes() }

// Pods returns all known pods in no particular order, each as the last successful
// inspection found it.
func (c *Cache) Pods() []runtime.Pod {
	c.mu.RLock()
	defer c.mu.RUnlock()
	pods := make([]runtime.Pod, 0, len(c.entries))
	for _, e := range c.entries {
		pods = append(pods, e.Pod)
	}
	return pods
}
