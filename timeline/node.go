package timeline

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/containergc"
	"github.com/sublet-dev/agent/eviction"
	"github.com/sublet-dev/agent/imagegc"
	"github.com/sublet-dev/agent/runtime"
)

// Limits of what is kept of the node.
const (
	samplePeriod   = 10 * time.Second
	maxSamples     = int(time.Hour / samplePeriod)
	maxEvictions   = 100
	maxCollections = 100
	maxRanked      = 10 // candidates of an eviction
	maxItems       = 50 // of a collection
)

// Condition is a condition of the node.
type Condition struct {
	Type    string    `json:"type"`
	Status  string    `json:"status"`
	Reason  string    `json:"reason,omitempty"`
	Message string    `json:"message,omitempty"`
	Since   time.Time `json:"since"`
}

// Sample is the usage of the node at one time. A capacity of 0 means that the value is
// unknown.
type Sample struct {
	At             time.Time `json:"at"`
	MilliCPU       uint64    `json:"milliCPU"`
	MilliCPUs      uint64    `json:"milliCPUs"` // capacity
	Memory         uint64    `json:"memory"`    // working set in bytes
	MemoryCapacity uint64    `json:"memoryCapacity"`
	NodeFS         uint64    `json:"nodeFS"` // used bytes
	NodeFSCapacity uint64    `json:"nodeFSCapacity"`
	ImageFS        uint64    `json:"imageFS"`
	ImageFSSize    uint64    `json:"imageFSCapacity"`
	Pids           uint64    `json:"pids"`
	PidsMax        uint64    `json:"pidsMax"`
	// The share of the last minute in which some task waited, in percent.
	MemoryPressure float64 `json:"memoryPressure"`
	IOPressure     float64 `json:"ioPressure"`
	CPUPressure    float64 `json:"cpuPressure"`
}

// Eviction explains why a pod was evicted.
type Eviction struct {
	At         time.Time   `json:"at"`
	UID        types.UID   `json:"uid"`
	Namespace  string      `json:"namespace"`
	Name       string      `json:"name"`
	Signal     string      `json:"signal"` // "": a limit of the pod's own storage
	Message    string      `json:"message"`
	Grace      float64     `json:"gracePeriodSeconds"`
	Candidates int         `json:"candidates"`
	Ranked     []Candidate `json:"ranked"` // the first of them, the evicted pod first
	Took       float64     `json:"tookSeconds,omitempty"`
	Error      string      `json:"error,omitempty"`
	Done       bool        `json:"done"`
	version    uint64
}

// Candidate is a pod that could have been evicted, with what it was ranked by.
type Candidate struct {
	UID            types.UID `json:"uid"`
	Namespace      string    `json:"namespace"`
	Name           string    `json:"name"`
	Priority       int32     `json:"priority"`
	Critical       bool      `json:"critical,omitempty"`
	ExceedsRequest bool      `json:"exceedsRequest,omitempty"`
	Usage          uint64    `json:"usage"`
	Request        uint64    `json:"request"`
	Stalled        bool      `json:"stalled,omitempty"` // Usage is a share of time, in hundredths of a percent
}

// Collection explains one garbage collection.
type Collection struct {
	At          time.Time   `json:"at"`
	What        string      `json:"what"` // images or containers
	Took        float64     `json:"tookSeconds"`
	Removed     int         `json:"removed"`
	BytesToFree uint64      `json:"bytesToFree,omitempty"`
	BytesFreed  uint64      `json:"bytesFreed,omitempty"`
	Items       []Collected `json:"items"` // the first of them, in the order of removal
	Error       string      `json:"error,omitempty"`
	version     uint64
}

// Collected is something that was removed, or could not be.
type Collected struct {
	Name     string    `json:"name"`
	Bytes    uint64    `json:"bytes,omitempty"`
	LastUsed time.Time `json:"lastUsed,omitzero"`
	Reason   string    `json:"reason"`
	Error    string    `json:"error,omitempty"`
}

// nodeRecord is what is known of the node. History.mu guards it.
type nodeRecord struct {
	conditions  []Condition
	samples     []versioned
	evictions   []Eviction
	collections []Collection
	pending     map[string]*Collection // under way, by what is collected
}

type versioned struct {
	Sample
	version uint64
}

// since returns what is newer than a version. Conditions are always complete.
func (n *nodeRecord) since(version uint64) Node {
	out := Node{Conditions: append([]Condition{}, n.conditions...), Samples: []Sample{}, Evictions: []Eviction{}, Collections: []Collection{}}
	for i := range n.samples {
		if n.samples[i].version > version {
			out.Samples = append(out.Samples, n.samples[i].Sample)
		}
	}
	for i := range n.evictions {
		if n.evictions[i].version > version {
			out.Evictions = append(out.Evictions, n.evictions[i])
		}
	}
	for i := range n.collections {
		if n.collections[i].version > version {
			out.Collections = append(out.Collections, n.collections[i])
		}
	}
	return out
}

// push appends to a list and drops the oldest above the limit.
func push[T any](list []T, limit int, v T) []T {
	if len(list) >= limit {
		list = slices.Delete(list, 0, len(list)-limit+1)
	}
	return append(list, v)
}

// Eviction returns the hooks of an eviction.Manager.
func (h *History) Eviction() eviction.Hooks {
	return eviction.Hooks{
		Evicting: h.evicting,
		Evicted: func(_ eviction.Signal, pod *corev1.Pod, duration time.Duration, err error) {
			h.mu.Lock()
			defer h.mu.Unlock()
			for i := len(h.node.evictions) - 1; i >= 0; i-- {
				if e := &h.node.evictions[i]; e.UID == pod.UID && !e.Done {
					e.Took, e.Error, e.Done, e.version = duration.Seconds(), clip(errorText(err), maxMessage), true, h.bump()
					return
				}
			}
		},
		ConditionsChanged: h.conditionsChanged,
	}
}

func (h *History) evicting(signal eviction.Signal, ranked []eviction.Candidate, t runtime.Termination) {
	if len(ranked) == 0 {
		return
	}
	if signal.IsLocalStorageLimit() {
		signal = "" // the message names the limit
	}
	pod := ranked[0].Pod
	out := Eviction{
		At: time.Now(), UID: pod.UID, Namespace: clip(pod.Namespace, maxName), Name: clip(pod.Name, maxName), Signal: string(signal),
		Message: clip(t.Message, maxMessage), Grace: t.GracePeriod.Seconds(), Candidates: len(ranked), Ranked: make([]Candidate, 0, min(len(ranked), maxRanked)),
	}
	for _, c := range ranked[:min(len(ranked), maxRanked)] {
		out.Ranked = append(out.Ranked, Candidate{
			UID: c.Pod.UID, Namespace: clip(c.Pod.Namespace, maxName), Name: clip(c.Pod.Name, maxName), Priority: c.Priority, Critical: c.Critical,
			ExceedsRequest: c.ExceedsRequest(), Usage: c.Usage, Request: c.Request, Stalled: c.Stalled,
		})
	}
	h.update(pod, func(r *podRecord, now time.Time) {
		out.version = r.Version
		h.node.evictions = push(h.node.evictions, maxEvictions, out)
		e := moment(KindEvicted, now)
		e.Reason, e.Message, e.Failed = string(signal), t.Message, true
		h.add(r, e)
	})
}

// conditionsChanged replaces the conditions of the types that are in all, and keeps others:
// a Sampler knows more of them than eviction does.
func (h *History) conditionsChanged(all []corev1.NodeCondition) {
	h.mu.Lock()
	defer h.mu.Unlock()
	next := slices.Clone(h.node.conditions) // readers may have the previous ones
	for i := range all {
		c := Condition{
			Type: string(all[i].Type), Status: string(all[i].Status), Reason: clip(all[i].Reason, maxReason), Message: clip(all[i].Message, maxMessage),
			Since: all[i].LastTransitionTime.Time,
		}
		if known := slices.IndexFunc(next, func(k Condition) bool { return k.Type == c.Type }); known >= 0 {
			next[known] = c
		} else {
			next = append(next, c)
		}
	}
	if !slices.Equal(h.node.conditions, next) {
		h.node.conditions = next
		h.bump()
	}
}

// AddSample adds a sample of the node. A Sampler calls it.
func (h *History) AddSample(s Sample) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.node.samples = push(h.node.samples, maxSamples, versioned{s, h.bump()})
}

// ImageGC returns the hooks of an imagegc.Collector.
func (h *History) ImageGC() imagegc.Hooks {
	const what = "images"
	return imagegc.Hooks{
		Removed: func(image runtime.Image, reason imagegc.Reason, _ time.Duration, err error) {
			if err != nil { // those that were removed come with Collected
				h.collect(what, Collected{Name: imageName(image), Bytes: image.Bytes, Reason: string(reason), Error: errorText(err)})
			}
		},
		Collected: func(result imagegc.Result, err error) {
			for i := range result.Removed {
				d := &result.Removed[i]
				h.collect(what, Collected{Name: imageName(d.Image), Bytes: d.Image.Bytes, LastUsed: d.Record.LastUsed, Reason: string(d.Reason)})
			}
			h.collected(what, result.Duration, err, result.BytesToFree, result.BytesFreed)
		},
	}
}

func imageName(image runtime.Image) string {
	for _, names := range [][]string{image.Tags, image.Digests} {
		if len(names) > 0 {
			return names[0]
		}
	}
	return image.ID
}

// ContainerGC returns the hooks of a containergc.Collector.
func (h *History) ContainerGC() containergc.Hooks {
	const what = "containers"
	return containergc.Hooks{
		Removed: func(removal containergc.Removal, _ time.Duration, err error) {
			h.collect(what, Collected{Name: removalName(removal), Reason: string(removal.Reason), Error: errorText(err)})
		},
		Collected: func(result containergc.Result, err error) { h.collected(what, result.Duration, err, 0, 0) },
	}
}

func removalName(removal containergc.Removal) string {
	name := string(removal.UID)
	if removal.Pod != nil {
		name = removal.Pod.Namespace + "/" + removal.Pod.Name
	}
	if removal.Container == nil {
		return name + " (sandbox)"
	}
	return name + " " + removal.Container.Name
}

// collect adds an item to the collection under way.
func (h *History) collect(what string, item Collected) {
	item.Name, item.Reason, item.Error = clip(item.Name, 2*maxName), clip(item.Reason, maxReason), clip(item.Error, maxMessage)
	h.mu.Lock()
	defer h.mu.Unlock()
	c := h.node.pending[what]
	if c == nil {
		c = &Collection{What: what}
		if h.node.pending == nil {
			h.node.pending = map[string]*Collection{}
		}
		h.node.pending[what] = c
	}
	if item.Error == "" {
		c.Removed++
	}
	if len(c.Items) < maxItems {
		c.Items = append(c.Items, item)
	}
}

// collected ends the collection under way. One that had nothing to do is not kept.
func (h *History) collected(what string, took time.Duration, err error, toFree, freed uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	c := h.node.pending[what]
	delete(h.node.pending, what)
	if c == nil && err == nil {
		return
	}
	if c == nil {
		c = &Collection{What: what, Items: []Collected{}}
	}
	c.At, c.Took, c.Error, c.BytesToFree, c.BytesFreed = time.Now(), took.Seconds(), clip(errorText(err), maxMessage), toFree, freed
	c.version = h.bump()
	h.node.collections = push(h.node.collections, maxCollections, *c)
}
