package kubeapi

import (
	"maps"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
)

// object is an object of the API.
type object interface {
	metav1.Object
	runtime.Object
}

// versions are the resource versions, which all resources share. They begin with the
// time, so that those of an earlier process are older.
type versions struct{ last atomic.Uint64 }

func newVersions() *versions {
	v := &versions{}
	v.last.Store(uint64(time.Now().UnixMicro()))
	return v
}

func (v *versions) next() uint64    { return v.last.Add(1) }
func (v *versions) current() uint64 { return v.last.Load() }

// change is a change of one object. A deleted one has the version of its deletion.
type change struct {
	version uint64
	typ     watch.EventType
	obj     object
	prev    object // nil: it is new
}

// item is an object and what it was made of.
type item struct {
	obj object // with its resource version; read-only
	raw object // as it was given, for comparison
}

// collection is the objects of one resource, as clients see them, and their last changes.
type collection struct {
	versions *versions

	mu       sync.Mutex // guards all below
	items    map[string]item
	history  []change // oldest first
	oldest   uint64   // a watch from this version or a later one misses nothing
	watchers map[*watcher]struct{}
}

// maxHistory bounds the changes that are kept for watches that begin in the past.
const maxHistory = 1000

func newCollection(v *versions) *collection {
	return &collection{versions: v, items: map[string]item{}, oldest: v.current(), watchers: map[*watcher]struct{}{}}
}

// adopt makes the collection use the versions of an API.
func (c *collection) adopt(v *versions) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.versions, c.oldest, c.history = v, v.current(), nil
	for key, it := range c.items {
		c.items[key] = item{withVersion(it.raw, v.next()), it.raw}
	}
	c.oldest = v.current()
}

func keyOf(o metav1.Object) string { return o.GetNamespace() + "/" + o.GetName() }

// withVersion returns a copy with a resource version. Copies share the rest, which is
// read-only.
func withVersion(o object, version uint64) object {
	copied, ok := o.DeepCopyObject().(object)
	if !ok {
		return o
	}
	copied.SetResourceVersion(strconv.FormatUint(version, 10))
	return copied
}

// replace makes objects all that there are. They are read-only from now on.
func (c *collection) replace(objects []object) {
	c.mu.Lock()
	defer c.mu.Unlock()
	present := make(map[string]bool, len(objects))
	for _, o := range objects {
		present[keyOf(o)] = true
		c.put(o)
	}
	for _, key := range slices.Sorted(maps.Keys(c.items)) {
		if !present[key] {
			c.remove(key)
		}
	}
}

// put adds or changes an object. An object with another UID replaces the old one.
// held: c.mu
func (c *collection) put(o object) {
	key := keyOf(o)
	current, exists := c.items[key]
	if exists && current.raw.GetUID() != o.GetUID() {
		c.remove(key)
		exists = false
	}
	if exists && (current.raw == o || equality.Semantic.DeepEqual(current.raw, o)) {
		return
	}
	version := c.versions.next()
	ch := change{version: version, typ: watch.Added, obj: withVersion(o, version)}
	if exists {
		ch.typ, ch.prev = watch.Modified, current.obj
	}
	c.items[key] = item{ch.obj, o}
	c.publish(ch)
}

// remove removes an object.
// held: c.mu
func (c *collection) remove(key string) {
	it, ok := c.items[key]
	if !ok {
		return
	}
	delete(c.items, key)
	version := c.versions.next()
	c.publish(change{version: version, typ: watch.Deleted, obj: withVersion(it.obj, version), prev: it.obj})
}

// publish records a change and hands it to the watchers.
// held: c.mu
func (c *collection) publish(ch change) {
	if len(c.history) >= maxHistory {
		c.oldest = c.history[0].version
		c.history = slices.Delete(c.history, 0, 1)
	}
	c.history = append(c.history, ch)
	for w := range c.watchers {
		if !w.add(ch) {
			delete(c.watchers, w)
		}
	}
}

// list returns all objects, sorted by namespace and name, the version of the last change, since
// which the list is the same, and the current version.
func (c *collection) list() (all []object, changed, current uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	changed = c.oldest
	if n := len(c.history); n > 0 {
		changed = c.history[n-1].version
	}
	return c.sorted(), changed, c.versions.current()
}

// sorted returns all objects in the order of lists.
// held: c.mu
func (c *collection) sorted() []object {
	all := make([]object, 0, len(c.items))
	for _, key := range slices.Sorted(maps.Keys(c.items)) {
		all = append(all, c.items[key].obj)
	}
	return all
}

// get returns an object, or nil.
func (c *collection) get(namespace, name string) object {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.items[namespace+"/"+name].obj
}

func (c *collection) isWatched() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.watchers) > 0
}

// watcher is one watch of a client.
type watcher struct {
	// changes is closed when the client was too slow.
	changes chan change
}

// watcherBuffer is how many changes a client may lag behind.
const watcherBuffer = 1000

// add hands over a change. It returns false, and ends the watch, if there is no space.
func (w *watcher) add(ch change) bool {
	select {
	case w.changes <- ch:
		return true
	default:
		close(w.changes)
		return false
	}
}

// start is where a watch begins.
type start struct {
	objects []object // that there are, for a watch without a version
	changes []change // since the version
	version uint64   // of the two above
}

// watch registers a watcher of the changes after a version, 0: from now on; nil: of all objects
// and then their changes. It returns false if the version is too old or not known.
func (c *collection) watch(after *uint64) (*watcher, start, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	w, from := &watcher{changes: make(chan change, watcherBuffer)}, start{version: c.versions.current()}
	switch {
	case after == nil:
		from.objects = c.sorted()
	case *after == 0:
	case *after < c.oldest || *after > from.version:
		return nil, from, false
	default:
		for _, ch := range c.history {
			if ch.version > *after {
				from.changes = append(from.changes, ch)
			}
		}
	}
	c.watchers[w] = struct{}{}
	return w, from, true
}

func (c *collection) unwatch(w *watcher) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.watchers, w)
}
