package timeline

import (
	"cmp"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// Config limits a History. The zero value has all defaults.
type Config struct {
	MaxPods       int           // pods, those that are gone included. Default: 2000
	MaxPodEntries int           // entries of one pod; at least 32. Default: 200
	MaxEntries    int           // entries of all pods together; at least MaxPodEntries. Default: 40000, about 15 MB
	DeletedAge    time.Duration // how long a pod that is gone is kept. Default: 1h
}

const (
	defaultMaxPods       = 2000
	defaultMaxPodEntries = 200
	defaultMaxEntries    = 40000
	defaultDeletedAge    = time.Hour

	minPodEntries = 32
	// keptEntries is how many of the first entries of a pod are never dropped while it is
	// there: they tell how it started.
	keptEntries = 16
	// maxForgotten is how many forgotten pods a reader can learn of. One that is further
	// behind gets everything again.
	maxForgotten = 1000
)

// History is what happened on a node. Its methods may be called from any goroutine.
type History struct {
	cfg Config

	mu        sync.Mutex // guards the fields below; held over memory only
	version   uint64     // of the last change
	changed   chan struct{}
	waiting   int // readers that wait for changed
	pods      map[types.UID]*podRecord
	ranks     ranks // of pods
	entries   int   // of all in pods
	forgotten []forgotten
	node      nodeRecord
}

// forgotten is a pod that is not in the History any more.
type forgotten struct {
	uid     types.UID
	version uint64
}

// podRecord is what is known of one pod.
type podRecord struct {
	Pod
	containers  []Container
	entries     []Entry
	dropped     int
	terminating bool
	ready       map[string]bool // by container name
	lastEntryID uint64
	places      places // in the ranks
}

// New returns an empty History.
func New(cfg Config) *History {
	cfg.MaxPods = cmp.Or(cfg.MaxPods, defaultMaxPods)
	cfg.MaxPodEntries = max(cmp.Or(cfg.MaxPodEntries, defaultMaxPodEntries), minPodEntries)
	cfg.MaxEntries = max(cmp.Or(cfg.MaxEntries, defaultMaxEntries), cfg.MaxPodEntries)
	cfg.DeletedAge = cmp.Or(cfg.DeletedAge, defaultDeletedAge)
	return &History{cfg: cfg, changed: make(chan struct{}), pods: map[types.UID]*podRecord{}, ranks: newRanks()}
}

// bump returns the version of a change, and wakes the readers. mu is held.
func (h *History) bump() uint64 {
	h.version++
	if h.waiting > 0 {
		close(h.changed)
		h.changed, h.waiting = make(chan struct{}), 0
	}
	return h.version
}

// record returns the record of a pod, made now if there is none, with room for an entry.
// mu is held.
func (h *History) record(uid types.UID, namespace, name string) *podRecord {
	r := h.pods[uid]
	if r == nil {
		if len(h.pods) >= h.cfg.MaxPods {
			h.forgetOne()
		}
		r = &podRecord{Pod: Pod{UID: uid, State: "Pending", Health: Progressing, Since: time.Now()}}
		h.pods[uid] = r
		h.ranks.add(r)
	}
	if name != "" {
		r.Namespace, r.Name = clip(namespace, maxName), clip(name, maxName)
	}
	h.touch(r)
	return r
}

// touch gives a record the version of a change. mu is held.
func (h *History) touch(r *podRecord) {
	r.Version = h.bump()
	h.ranks.changed.Fix(r.places.changed)
}

// add adds an entry to a pod and returns its id. An entry that repeats the last one is
// counted with it. mu is held.
func (h *History) add(r *podRecord, e Entry) uint64 {
	e.Reason, e.Message = clip(e.Reason, maxReason), clip(e.Message, maxMessage)
	e.Container, e.Image = clip(e.Container, maxName), clip(e.Image, maxImage)
	if n := len(r.entries); n > 0 && e.repeats(&r.entries[n-1]) {
		last := &r.entries[n-1]
		last.Count, last.End = max(last.Count, 1)+1, e.End
		return last.ID
	}
	if len(r.entries) >= h.cfg.MaxPodEntries {
		h.dropEntry(r)
	}
	for h.entries >= h.cfg.MaxEntries && h.makeRoom(r) {
	}
	r.lastEntryID++
	e.ID = r.lastEntryID
	r.entries = append(r.entries, e)
	h.entries++
	h.ranks.longest.Fix(r.places.longest)
	return e.ID
}

// dropEntry drops the oldest entry of a pod that does not tell how it started.
func (h *History) dropEntry(r *podRecord) {
	at := min(keptEntries, len(r.entries)-1)
	r.entries = append(r.entries[:at], r.entries[at+1:]...)
	r.dropped++
	h.entries--
	h.ranks.longest.Fix(r.places.longest)
}

// makeRoom drops a pod that is gone, or else an entry of the pod that has most. It does not
// drop the pod that needs the room: entries of a forgotten one would be counted and never
// dropped. It reports whether there was something to drop.
func (h *History) makeRoom(needs *podRecord) bool {
	if deleted := h.ranks.oldestDeleted(needs); deleted != nil {
		h.forget(deleted)
		return true
	}
	if h.ranks.longest.Len() == 0 || len(h.ranks.longest.First().entries) == 0 {
		return false
	}
	h.dropEntry(h.ranks.longest.First())
	return true
}

// forgetOne forgets the pod that has been gone for longest or, if there is none, the one
// that has not changed for longest.
func (h *History) forgetOne() {
	oldest := h.ranks.oldestDeleted(nil)
	if oldest == nil {
		oldest = h.ranks.changed.First()
	}
	h.forget(oldest)
}

func (h *History) forget(r *podRecord) {
	delete(h.pods, r.UID)
	h.ranks.remove(r)
	h.entries -= len(r.entries)
	h.forgotten = append(h.forgotten, forgotten{r.UID, h.bump()})
	if excess := len(h.forgotten) - maxForgotten; excess > 0 {
		h.forgotten = append(h.forgotten[:0], h.forgotten[excess:]...)
	}
}

// forgetAged forgets the pods that have been gone for too long. mu is held.
func (h *History) forgetAged(now time.Time) {
	for r := h.ranks.oldestDeleted(nil); r != nil && now.Sub(r.DeletedAt) > h.cfg.DeletedAge; r = h.ranks.oldestDeleted(nil) {
		h.forget(r)
	}
}

// Limits of texts, in bytes.
const (
	maxName    = 253
	maxReason  = 128
	maxImage   = 256
	maxMessage = 512
)

// clip truncates a text so that it stays valid UTF-8, and releases the memory of a longer
// one.
func clip(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	const mark = "…"
	end := limit - len(mark)
	for end > 0 && s[end]&0xC0 == 0x80 { // within a rune
		end--
	}
	return s[:end] + mark
}
