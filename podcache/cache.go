// Package podcache holds the last thing the runtime said of each pod, and when
// it was observed.
//
// Freshness is kept for each pod by itself: there is no clock for the whole
// node, so a pod that cannot be inspected makes no other view look old. A
// reader that needs a newer view waits for its own pod alone and is handed the
// view that satisfied it, however quickly that one is replaced or deleted.
package podcache

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/runtime"
)

// Entry is what is known of one pod.
type Entry struct {
	// Pod is the last view that an inspection gave; the zero Pod but for its UID
	// when none has succeeded yet.
	Pod runtime.Pod
	// Err is why the last inspection failed. Pod is older than At then.
	Err error
	// InspectedAt is when the last inspection began.
	InspectedAt time.Time
}

// Cache is written by a pleg and read by everybody else. The zero value is
// ready. Its methods may be called from any goroutine and only NewerThan
// blocks. Its memory is one entry for each pod that was set and not deleted.
type Cache struct {
	// mu guards what follows. It is held for a map access and, in Set, for
	// handing the view to those who wait for that pod.
	mu      sync.RWMutex
	entries map[types.UID]*Entry
	waiters map[types.UID][]*waiter
}

type waiter struct {
	at       time.Time
	resultCh chan Entry // one slot: it is sent to once at most
}

// Set stores what an inspection that began at a time found. With an error the
// former view is kept beside it. A call that is older than what is stored
// changes nothing.
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
	if err == nil {
		e.Pod = p
	}
	e.Err, e.InspectedAt = err, at
	c.notifyWaiters(uid, *e)
}

// notifyWaiters hands e to those who wait for such a view. The caller holds mu.
func (c *Cache) notifyWaiters(uid types.UID, e Entry) {
	waiting := c.waiters[uid]
	if len(waiting) == 0 {
		return
	}
	c.addWaiter(uid, slices.DeleteFunc(waiting, func(w *waiter) bool {
		if !e.InspectedAt.After(w.at) {
			return false
		}
		w.resultCh <- e
		return true
	}))
}

func (c *Cache) addWaiter(uid types.UID, waiting []*waiter) {
	if len(waiting) == 0 {
		delete(c.waiters, uid)
		return
	}
	c.waiters[uid] = waiting
}

// Delete forgets a pod. Those who wait for a newer view of it wait on.
func (c *Cache) Delete(uid types.UID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.entries, uid)
}

// Get returns the last view that an inspection gave of the pod, even if a later
// one failed. It reports false for a pod that is not known.
func (c *Cache) Get(uid types.UID) (runtime.Pod, bool) {
	e, ok := c.Entry(uid)
	return e.Pod, ok
}

// Entry returns all that is known of the pod. It reports false for a pod that
// is not known.
func (c *Cache) Entry(uid types.UID) (Entry, bool) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	e, ok := c.entries[uid]
	if !ok {
		return Entry{}, false
	}
	return *e, true
}

// PodUIDs returns the pods that are known, in no order.
func (c *Cache) PodUIDs() []types.UID {
	c.mu.RLock()
	defer c.mu.RUnlock()
	uids := make([]types.UID, 0, len(c.entries))
	for uid := range c.entries {
		uids = append(uids, uid)
	}
	return uids
}

// Pods returns the last view of every pod that is known, in no order.
func (c *Cache) Pods() []runtime.Pod {
	c.mu.RLock()
	defer c.mu.RUnlock()
	pods := make([]runtime.Pod, 0, len(c.entries))
	for _, e := range c.entries {
		pods = append(pods, e.Pod)
	}
	return pods
}

// GetNewerThan waits until the pod was looked at by an inspection that began after
// at, and returns its result: the view, or the last good view with the error of
// that inspection. It returns the zero Pod and the cause when ctx ends first. It
// starts no goroutine and asks for no inspection; the reader that wants one at
// once asks the pleg.
func (c *Cache) GetNewerThan(ctx context.Context, uid types.UID, at time.Time) (runtime.Pod, error) {
	c.mu.Lock()
	if e := c.entries[uid]; e != nil && e.InspectedAt.After(at) {
		defer c.mu.Unlock()
		return e.Pod, e.Err
	}
	w := &waiter{at: at, resultCh: make(chan Entry, 1)}
	if c.waiters == nil {
		c.waiters = map[types.UID][]*waiter{}
	}
	c.waiters[uid] = append(c.waiters[uid], w)
	c.mu.Unlock()

	select {
	case e := <-w.resultCh:
		return e.Pod, e.Err
	case <-ctx.Done():
		c.removeWaiter(uid, w)
		return runtime.Pod{}, fmt.Errorf("wait for a newer view of pod %s: %w", uid, context.Cause(ctx))
	}
}

func (c *Cache) removeWaiter(uid types.UID, w *waiter) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.addWaiter(uid, slices.DeleteFunc(c.waiters[uid], func(o *waiter) bool { return o == w }))
}
