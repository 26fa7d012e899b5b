package imagegc

import (
	"context"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/runtime"
)

// leases records the images that pods need, whether or not their containers exist, and
// the images that are being removed.
type leases struct {
	mu       sync.Mutex // guards all below
	byPod    map[types.UID]nameSet
	count    map[string]int     // number of leases per form of a name
	removing map[string]removal // by image id
	used     nameSet            // of leases that ended since the last takeUsed
}

// removal is an image that is being removed. done is closed when the removal has ended,
// successfully or not.
type removal struct {
	image runtime.Image
	done  chan struct{}
}

func newLeases() *leases {
	return &leases{
		byPod: make(map[types.UID]nameSet), count: make(map[string]int),
		removing: make(map[string]removal), used: make(nameSet),
	}
}

// acquire records the lease of a pod and returns the removals that it has to wait for.
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
	l.byPod[uid] = names
	var wait []chan struct{}
	for _, r := range l.removing {
		if names.has(r.image) {
			wait = append(wait, r.done)
		}
	}
	return wait
}

// forget ends the lease of a pod. Images without another lease were used until now.
// l.mu must be locked.
func (l *leases) forget(uid types.UID) {
	for form := range l.byPod[uid] {
		if l.count[form]--; l.count[form] == 0 {
			delete(l.count, form)
			l.used[form] = struct{}{}
		}
	}
	delete(l.byPod, uid)
}

// drop ends the leases of the pods for which ended returns true.
func (l *leases) drop(ended func(types.UID) bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for uid := range l.byPod {
		if ended(uid) {
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

// begin marks an image as being removed, until end is called. ok is false if a pod has a
// lease on it.
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

// Lease protects the images of a pod, as returned by ImageRefs, from removal until
// Release. It replaces the pod's previous lease. It waits until removals of these
// images have ended, and returns an error if ctx is done before; the lease is in effect
// in both cases. Images that exist when it returns nil are kept.
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

// Release ends the lease of a pod. Its images count as used until now.
func (c *Collector) Release(uid types.UID) {
	c.leases.drop(func(u types.UID) bool { return u == uid })
}

// Retain ends the leases of all pods except those for which keep returns true.
func (c *Collector) Retain(keep func(types.UID) bool) {
	c.leases.drop(func(u types.UID) bool { return !keep(u) })
}

// note updates the records: it adds new images, marks used ones, and deletes those that
// no longer exist.
func note(known map[string]ImageRecord, images []runtime.Image, used func(runtime.Image) bool, now time.Time) {
	listed := make(map[string]bool, len(images))
	for _, image := range images {
		listed[image.ID] = true
		k, ok := known[image.ID]
		if !ok {
			k = ImageRecord{FirstDetected: now, LastUsed: now}
		}
		// After the clock was set back, a time in the future would protect an image for long.
		if k.FirstDetected.After(now) {
			k.FirstDetected = now
		}
		if k.LastUsed.After(now) || used(image) {
			k.LastUsed = now
		}
		known[image.ID] = k
	}
	for id := range known {
		if !listed[id] {
			delete(known, id)
		}
	}
}
