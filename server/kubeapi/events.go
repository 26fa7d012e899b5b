package kubeapi

import (
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// maxEvents bounds the events that are kept. The oldest go first.
const maxEvents = 2000

// Events keeps the last 2000 events in memory, for kubectl events and kubectl describe.
// It is an agent.Recorder. The zero value is not ready for use: see NewEvents.
type Events struct {
	collection *collection

	mu    sync.Mutex // guards order
	order []string   // keys, by the time of the last change
}

// NewEvents returns an Events.
func NewEvents() *Events { return &Events{collection: newCollection(newVersions())} }

// Record keeps an event. It does not block and does not retain e.
func (e *Events) Record(event *corev1.Event) {
	kept := event.DeepCopy()
	kept.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Event"}
	if kept.Namespace == "" {
		kept.Namespace = corev1.NamespaceDefault
	}
	if kept.UID == "" {
		kept.UID = derivedUID("event", keyOf(kept))
	}
	if o := &kept.InvolvedObject; o.Kind == "Node" && o.UID == "" {
		o.UID = derivedUID("node", o.Name) // kubectl describe selects by it
	}
	if kept.CreationTimestamp.IsZero() {
		kept.CreationTimestamp = kept.FirstTimestamp
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	key := keyOf(kept)
	c := e.collection
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, known := c.items[key]; known {
		e.forget(key)
	}
	e.order = append(e.order, key)
	c.put(kept)
	for len(e.order) > maxEvents {
		c.remove(e.order[0])
		e.order = e.order[1:]
	}
}

// forget removes a key from the order.
// held: e.mu
func (e *Events) forget(key string) {
	for i, k := range e.order {
		if k == key {
			e.order = append(e.order[:i:i], e.order[i+1:]...)
			return
		}
	}
}
