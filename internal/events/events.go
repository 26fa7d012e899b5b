// Package events deduplicates and counts repeated Kubernetes events.
package events

import (
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sublet-dev/agent/internal/text"
)

// Recorder records events. It must not block.
type Recorder interface {
	Record(event *corev1.Event)
}

const (
	window      = 10 * time.Minute // in which equal events count as one
	maxEntries  = 4096             // in memory
	minInterval = time.Minute      // between two emissions of one event
	maxText     = 1024             // bytes of a message, the limit of the API server
	// maxSimilar is the number of events with different messages on one topic after
	// which further ones are combined, as in client-go.
	maxSimilar = 9
	// CombinedPrefix begins the message of an event that others are combined into, as in client-go.
	CombinedPrefix = "(combined from similar events): "
)

// topic is what similar events have in common. part is the container of a pod that they are about.
type topic struct{ uid, part, kind, reason string }

// key identifies an event.
type key struct {
	topic
	message string
}

// record is the last state of an event.
type record struct {
	event   *corev1.Event
	emitted time.Time
}

// variety counts the different messages on a topic.
type variety struct {
	messages int
	last     time.Time
}

// Dedup emits new events. An event that repeats within ten minutes is counted, and
// emitted at most once a minute with its first name and its count. After nine events
// that differ only in their messages, within ten minutes of each other, further ones
// are combined into one event with the last message. At most 4096 events are kept in
// memory.
type Dedup struct {
	next Recorder

	mu      sync.Mutex // guards the fields below
	records map[key]*record
	topics  map[topic]*variety
}

// New returns a Dedup that emits events to next. A nil next drops all events.
func New(next Recorder) *Dedup {
	return &Dedup{next: next, records: map[key]*record{}, topics: map[topic]*variety{}}
}

// Record implements Recorder. It does not retain e and may be called from any goroutine.
func (d *Dedup) Record(e *corev1.Event) {
	if d == nil || d.next == nil {
		return
	}
	if out := d.count(e, e.LastTimestamp.Time); out != nil {
		d.next.Record(out)
	}
}

func (d *Dedup) count(e *corev1.Event, now time.Time) *corev1.Event {
	k := key{topic{string(e.InvolvedObject.UID), e.InvolvedObject.FieldPath, e.Type, e.Reason}, text.Clip(e.Message, maxText, "...")}
	message := k.message
	d.mu.Lock()
	defer d.mu.Unlock()
	existing := d.recent(k, now)
	if existing == nil && d.hasMany(k.topic, now) {
		k.message, message = CombinedPrefix, text.Clip(CombinedPrefix+e.Message, maxText, "...")
		existing = d.recent(k, now)
	}
	if existing != nil {
		return existing.repeat(message, now)
	}
	if len(d.records) >= maxEntries {
		d.trim(now)
	}
	e = e.DeepCopy()
	e.Message, e.Count = message, 1
	d.records[k] = &record{event: e, emitted: now}
	return e.DeepCopy()
}

// recent returns the record of an event if it is within the window.
func (d *Dedup) recent(k key, now time.Time) *record {
	if r := d.records[k]; r != nil && now.Sub(r.event.LastTimestamp.Time) < window {
		return r
	}
	return nil
}

// hasMany counts a new event on a topic, and reports whether it must be combined with
// others.
func (d *Dedup) hasMany(t topic, now time.Time) bool {
	v := d.topics[t]
	if v == nil || now.Sub(v.last) >= window {
		v = &variety{}
		d.topics[t] = v
	}
	v.last = now
	v.messages++
	return v.messages > maxSimilar
}

// repeat counts a repeated event, and returns it if it must be emitted.
func (r *record) repeat(message string, now time.Time) *corev1.Event {
	r.event.Count++
	r.event.LastTimestamp, r.event.Message = metav1.NewTime(now), message
	if now.Sub(r.emitted) < minInterval {
		return nil
	}
	r.emitted = now
	return r.event.DeepCopy()
}

// trim removes old records and, if that is not enough, all. Then some events may be
// emitted more often than necessary.
func (d *Dedup) trim(now time.Time) {
	for k, v := range d.records {
		if now.Sub(v.event.LastTimestamp.Time) >= window {
			delete(d.records, k)
		}
	}
	for t, v := range d.topics {
		if now.Sub(v.last) >= window {
			delete(d.topics, t)
		}
	}
	if len(d.records) >= maxEntries {
		clear(d.records)
		clear(d.topics)
	}
}
