// Package podwatch reports changes of pods and their statuses to any number of watchers.
//
// A Hub is a status sink: give it to agent.WithStatusSink or status.Config.Sinks. Each
// call of Watch then yields the pods that there are, and their changes until its context
// is done.
//
//	for event := range hub.Watch(ctx) {
//		fmt.Println(event.Type, event.Pod.Name, event.Pod.Status.Phase)
//	}
//
// A watcher never blocks the Hub. One that is slower than the changes gets the newest
// state of each pod and the number of states that it has missed in between, so its memory
// is bounded by the number of pods.
package podwatch

import (
	"context"
	"iter"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/sublet-dev/agent/internal/notify"
)

// Event is a change of a pod.
type Event struct {
	// Type is watch.Added, watch.Modified or watch.Deleted. A watch begins with watch.Added for each
	// pod that there is; see WatchList for watch.Bookmark.
	Type watch.EventType
	// Pod is the newest state of the pod, with its status. It is read-only.
	Pod *corev1.Pod
	// Missed is how many states of this pod came and went before the watcher was ready
	// for them, the whole life of a pod with this UID among them if Type is watch.Deleted and no event
	// preceded. If none was missed then either, no status of the pod was ever reported to the Hub: a
	// previous process had it.
	Missed int
}

// Hub distributes changes. The zero value is ready for use. Its methods may be called
// from any goroutine.
type Hub struct {
	mu       sync.Mutex // guards all below and the fields of watchers
	pods     map[types.UID]*state
	watchers map[*watcher]struct{}
}

// state is what was last reported of a pod. It is never changed. A copy of the pod with the status in it is made when a watcher needs
// it, because most of a pod is the same as in the pod that all others use.
type state struct {
	pod    *corev1.Pod
	status corev1.PodStatus
}

func (s *state) withStatus() *corev1.Pod {
	pod := *s.pod
	pod.Status = s.status
	return &pod
}

// maxDeleted is how many deleted pods a watcher learns of later. Of more it gets only
// what it knows about.
const maxDeleted = 1000

// listEnd stands in a queue behind the pods that there were. No pod has this UID.
const listEnd types.UID = "\x00"

// watcher is one call of Watch or WatchList.
type watcher struct {
	wake    chan struct{} // one slot
	pending map[types.UID]*change
	queue   []types.UID // of pending, oldest first
	known   map[types.UID]struct{}
	unknown int // deletions in pending of pods that are not known
}

// change is what a watcher has yet to learn of a pod.
type change struct {
	last    *state
	deleted bool
	states  int
}

// SetStatus implements status.Sink. It does not block.
func (h *Hub) SetStatus(_ context.Context, pod *corev1.Pod, st corev1.PodStatus) error {
	current := &state{pod, st}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.pods == nil {
		h.pods = make(map[types.UID]*state)
	}
	h.pods[pod.UID] = current
	for w := range h.watchers {
		w.add(current, false)
	}
	return nil
}

// DeleteStatus implements status.Deleter. It does not block. Watchers also learn of the deletion of a
// pod without a status, which they may know from another place.
func (h *Hub) DeleteStatus(_ context.Context, pod *corev1.Pod) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	last, ok := h.pods[pod.UID]
	if !ok {
		last = &state{pod, pod.Status}
	}
	delete(h.pods, pod.UID)
	for w := range h.watchers {
		w.add(last, true)
	}
	return nil
}

// Watch yields the pods that there are, in no order, and then each change, until ctx is
// done. The changes of one pod come in their order.
func (h *Hub) Watch(ctx context.Context) iter.Seq[Event] { return h.watch(ctx, false) }

// WatchList is Watch with an event of type watch.Bookmark, which has no pod, after the pods that there were
// at the begin. So a watcher knows that it has them all, also if there was none.
func (h *Hub) WatchList(ctx context.Context) iter.Seq[Event] { return h.watch(ctx, true) }

func (h *Hub) watch(ctx context.Context, bookmark bool) iter.Seq[Event] {
	return func(yield func(Event) bool) {
		w := h.register(bookmark)
		defer h.unregister(w)
		for ctx.Err() == nil {
			if event, ok := h.next(w); ok {
				if !yield(event) {
					return
				}
				continue
			}
			select {
			case <-ctx.Done():
			case <-w.wake:
			}
		}
	}
}

func (h *Hub) register(bookmark bool) *watcher {
	w := &watcher{wake: make(chan struct{}, 1), pending: make(map[types.UID]*change), known: make(map[types.UID]struct{})}
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, last := range h.pods {
		w.add(last, false)
	}
	if bookmark {
		w.pending[listEnd] = &change{}
		w.queue = append(w.queue, listEnd)
	}
	if h.watchers == nil {
		h.watchers = make(map[*watcher]struct{})
	}
	h.watchers[w] = struct{}{}
	return w
}

func (h *Hub) unregister(w *watcher) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.watchers, w)
}

// next takes the oldest change out of the queue.
func (h *Hub) next(w *watcher) (Event, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for len(w.queue) > 0 {
		uid := w.queue[0]
		w.queue = w.queue[1:]
		c := w.pending[uid]
		if c == nil {
			continue // see add
		}
		delete(w.pending, uid)
		if uid == listEnd {
			return Event{Type: watch.Bookmark}, true
		}
		_, known := w.known[uid]
		event := Event{Type: watch.Modified, Pod: c.last.withStatus(), Missed: c.states - 1}
		switch {
		case c.deleted:
			event.Type = watch.Deleted
			delete(w.known, uid)
			if !known {
				w.unknown--
			}
		case !known:
			event.Type = watch.Added
			w.known[uid] = struct{}{}
		}
		return event, true
	}
	return Event{}, false
}

// add queues a change of a pod. Hub.mu is held.
func (w *watcher) add(last *state, deleted bool) {
	uid := last.pod.UID
	c := w.pending[uid]
	if c == nil {
		c = &change{}
		w.pending[uid] = c
		w.queue = append(w.queue, uid)
	}
	_, known := w.known[uid]
	if !known && deleted != c.deleted {
		if deleted {
			w.unknown++
		} else {
			w.unknown--
		}
	}
	c.last, c.deleted = last, deleted
	c.states++
	if w.unknown > maxDeleted {
		w.dropOldestUnknown()
	}
	notify.Send(w.wake)
}

// dropOldestUnknown forgets the oldest deletion of a pod that the watcher never saw,
// so that pods that come and go take no memory.
func (w *watcher) dropOldestUnknown() {
	kept := w.queue[:0]
	dropped := false
	for _, uid := range w.queue {
		c := w.pending[uid]
		_, known := w.known[uid]
		if !dropped && c != nil && c.deleted && !known {
			delete(w.pending, uid)
			w.unknown--
			dropped = true
			continue
		}
		kept = append(kept, uid)
	}
	w.queue = kept
}
