package timeline

import (
	"cmp"
	"context"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// Changes are what a reader has to know to be up to date.
type Changes struct {
	Version uint64 `json:"version"` // to ask with next
	// Reset means that this is everything: what the reader has is to be replaced.
	Reset     bool        `json:"reset,omitempty"`
	Pods      []Pod       `json:"pods"`                // that changed; in no order
	Forgotten []types.UID `json:"forgotten,omitempty"` // pods
	Node      Node        `json:"node"`
}

// Node is the state of the node. In Changes, Samples, Evictions and Collections are those
// that the reader does not have.
type Node struct {
	Conditions  []Condition  `json:"conditions"`
	Samples     []Sample     `json:"samples"`     // of the last hour, oldest first
	Evictions   []Eviction   `json:"evictions"`   // the last 100, oldest first
	Collections []Collection `json:"collections"` // the last 100 that removed or failed to remove something, oldest first
}

// Changes returns what changed after a version; 0 asks for everything. The result is the
// caller's, and what is in it is read-only.
func (h *History) Changes(since uint64) Changes {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.forgetAged(time.Now())
	c := Changes{Version: h.version, Pods: []Pod{}}
	if since == 0 || since > h.version || h.missed(since) {
		c.Reset, since = true, 0
	}
	for _, r := range h.pods {
		if r.Version > since {
			c.Pods = append(c.Pods, r.Pod)
		}
	}
	if !c.Reset {
		for _, f := range h.forgotten {
			if f.version > since {
				c.Forgotten = append(c.Forgotten, f.uid)
			}
		}
	}
	c.Node = h.node.since(since)
	return c
}

// missed reports whether a pod was forgotten after a version that the History does not
// remember.
func (h *History) missed(since uint64) bool {
	return len(h.forgotten) == maxForgotten && h.forgotten[0].version > since
}

// Wait blocks until something changed after a version, or ctx is done, whose cause it
// returns then.
func (h *History) Wait(ctx context.Context, since uint64) error {
	h.mu.Lock()
	if h.version != since {
		h.mu.Unlock()
		return nil
	}
	changed := h.changed
	h.waiting++
	h.mu.Unlock()
	select {
	case <-changed:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Pods returns all pods by namespace, name and the time at which they were seen.
func (h *History) Pods() []Pod {
	pods := h.Changes(0).Pods
	slices.SortFunc(pods, func(a, b Pod) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name), a.ReceivedAt.Compare(b.ReceivedAt), cmp.Compare(a.UID, b.UID))
	})
	return pods
}

// Pod returns the timeline of a pod. ok is false for an unknown pod.
func (h *History) Pod(uid types.UID) (t Timeline, ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	r := h.pods[uid]
	if r == nil {
		return Timeline{}, false
	}
	t = Timeline{Pod: r.Pod, ContainerStates: slices.Clone(r.containers), Entries: slices.Clone(r.entries), Dropped: r.dropped}
	slices.SortStableFunc(t.Entries, func(a, b Entry) int { return a.Start.Compare(b.Start) })
	return t, true
}

// Node returns the state of the node.
func (h *History) Node() Node {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.node.since(0)
}
