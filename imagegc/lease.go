package imagegc

import (
	"context"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/runtime"
)

// leases are the images that pods need, whether or not a container is there yet,
// and those that are being removed at this moment.
type leases struct {
	mu       sync.Mutex
	held     map[types.UID]nameSet
	count    map[string]int     // pods that hold each form of a name
	removing map[string]removal // by image id
	used     nameSet            // of leases that ended since it was last asked for
}

// removal is an image on its way out. done is closed when it is gone, or stays.
type removal struct {
	image runtime.Image
	done  chan struct{}
}

func newLeases() *leases {
	return &leases{
		held: make(map[types.UID]nameSet), count: make(map[string]int),
		removing: make(map[string]removal), used: make(nameSet),
	}
}

// acquire records what a pod needs and returns what it has to wait for.
func (l *leases) acquire(uid types.UID, refs []string) []chan struct{} {
	names := make(nameSet, 2*len(refs))
	for _, ref := range refs {
		names.add(ref)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for form := range names {
		l.count[form]++
	}
	l.forget(uid)
	l.held[uid] = names
	var wait []chan struct{}
	for _, r := range l.removing {
		if names.has(r.image) {
			wait = append(wait, r.done)
		}
	}
	return wait
}

// forget ends a pod's lease. What nobody else holds was used until now.
func (l *leases) forget(uid types.UID) {
	for form := range l.held[uid] {
		if l.count[form]--; l.count[form] == 0 {
			delete(l.count, form)
			l.used[form] = struct{}{}
		}
	}
	delete(l.held, uid)
}

func (l *leases) drop(gone func(types.UID) bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for uid := range l.held {
		if gone(uid) {
			l.forget(uid)
		}
	}
}

func (l *leases) has(image runtime.Image) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.hasLocked(image)
}

func (l *leases) hasLocked(image runtime.Image) bool {
	return matchesAnyName(image, func(form string) bool { return l.count[form] > 0 })
}

// begin marks an image as being removed. It is false if a pod has a lease on it.
func (l *leases) begin(image runtime.Image) (end func(), ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.hasLocked(image) {
		return nil, false
	}
	r := removal{image: image, done: make(chan struct{})}
	l.removing[image.ID] = r
	return func() {
		l.mu.Lock()
		delete(l.removing, image.ID)
		l.mu.Unlock()
		close(r.done)
	}, true
}

// takeUsed returns the names of leases that ended since the last call.
func (l *leases) takeUsed() nameSet {
	l.mu.Lock()
	defer l.mu.Unlock()
	used := l.used
	l.used = make(nameSet)
	return used
}

// Lease keeps the images that a pod needs from being removed, from its admission
// on until Release; Refs tells which. It replaces the pod's former lease. If one
// of them is being removed at this moment it waits until that is over, or ctx
// is; the lease holds even then. After it, an image that is there stays.
func (c *Collector) Lease(ctx context.Context, uid types.UID, refs []string) error {
	for _, done := range c.leases.acquire(uid, refs) {
		select {
		case <-done:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// Release ends a pod's lease. Its images count as used until now.
func (c *Collector) Release(uid types.UID) {
	c.leases.drop(func(u types.UID) bool { return u == uid })
}

// Retain ends the leases of all pods but those for which keep is true.
func (c *Collector) Retain(keep func(types.UID) bool) {
	c.leases.drop(func(u types.UID) bool { return !keep(u) })
}

// note updates what is remembered: images that are new, that are used, and that
// are gone.
func note(known map[string]ImageRecord, images []runtime.Image, used func(runtime.Image) bool, now time.Time) {
	here := make(map[string]bool, len(images))
	for _, image := range images {
		here[image.ID] = true
		k, seen := known[image.ID]
		if !seen {
			k = ImageRecord{FirstDetected: now, LastUsed: now}
		}
		// A clock that was set back must not make an image young for years.
		if k.FirstDetected.After(now) {
			k.FirstDetected = now
		}
		if k.LastUsed.After(now) || used(image) {
			k.LastUsed = now
		}
		known[image.ID] = k
	}
	for id := range known {
		if !here[id] {
			delete(known, id)
		}
	}
}
