// Package events counts repeated Kubernetes events instead of passing each on.
package events

import (
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Recorder takes events and must not block.
type Recorder interface {
	Record(event *corev1.Event)
}

const (
	window      = 10 * time.Minute // how long an event is remembered
	maxEntries  = 4096             // how many are remembered at the most
	minInterval = time.Minute      // between two tellings of one event
	maxText     = 1024             // bytes of a message, as the API server allows
	// alike is how many events that differ in their messages alone are told before
	// all others of them are taken together, as client-go does.
	alike    = 10
	together = "(combined from similar events): "
)

// topic is what events have in common that are alike.
type topic struct{ uid, kind, reason string }

// key is what makes two events the same one.
type key struct {
	topic
	message string
}

type known struct {
	event *corev1.Event
	told  time.Time
}

// variety is how many events on a topic were new lately.
type variety struct {
	messages int
	last     time.Time
}

// Dedup passes an event on when it is new. One that repeats within ten minutes
// is counted, and passed on again at most once a minute, under its first name
// and with its count. When ten have differed in their messages alone, none of them
// ten minutes after the last, all others count as one that has the newest message.
// At most 4096 events are remembered.
type Dedup struct {
	next Recorder

	mu     sync.Mutex // guards all below, held over memory only
	seen   map[key]*known
	topics map[topic]*variety
}

// New returns a Dedup in front of next; a nil next drops everything.
func New(next Recorder) *Dedup {
	return &Dedup{next: next, seen: map[key]*known{}, topics: map[topic]*variety{}}
}

// Record implements Recorder. It does not keep e, and may be called from any
// goroutine.
func (d *Dedup) Record(e *corev1.Event) {
	if d == nil || d.next == nil {
		return
	}
	if out := d.count(e, e.LastTimestamp.Time); out != nil {
		d.next.Record(out)
	}
}

func (d *Dedup) count(e *corev1.Event, now time.Time) *corev1.Event {
	k := key{topic{string(e.InvolvedObject.UID), e.Type, e.Reason}, clip(e.Message)}
	message := k.message
	d.mu.Lock()
	defer d.mu.Unlock()
	old := d.recent(k, now)
	if old == nil && d.many(k.topic, now) {
		k.message, message = together, clip(together+e.Message)
		old = d.recent(k, now)
	}
	if old != nil {
		return old.again(message, now)
	}
	if len(d.seen) >= maxEntries {
		d.trim(now)
	}
	e = e.DeepCopy()
	e.Message, e.Count = message, 1
	d.seen[k] = &known{event: e, told: now}
	return e.DeepCopy()
}

// recent returns what is remembered of an event of the last ten minutes.
func (d *Dedup) recent(k key, now time.Time) *known {
	if old := d.seen[k]; old != nil && now.Sub(old.event.LastTimestamp.Time) < window {
		return old
	}
	return nil
}

// many takes note of a new event on a topic, and reports whether there were so many
// that it is to be taken together with others.
func (d *Dedup) many(t topic, now time.Time) bool {
	v := d.topics[t]
	if v == nil || now.Sub(v.last) >= window {
		v = &variety{}
		d.topics[t] = v
	}
	v.last = now
	v.messages++
	return v.messages > alike
}

// again counts an event once more, and returns it if it is to be told again.
func (k *known) again(message string, now time.Time) *corev1.Event {
	k.event.Count++
	k.event.LastTimestamp, k.event.Message = metav1.NewTime(now), message
	if now.Sub(k.told) < minInterval {
		return nil
	}
	k.told = now
	return k.event.DeepCopy()
}

// clip makes a message one that the API server takes: text, and not too long. What
// is cut off is not kept in memory either.
func clip(message string) string {
	text := strings.ToValidUTF8(message[:min(len(message), maxText+1)], "�")
	if len(message) <= maxText && len(text) <= maxText {
		return text
	}
	return strings.ToValidUTF8(text[:min(len(text), maxText-3)], "") + "..."
}

// trim forgets what is old, and if that is not enough, everything: then some
// event may be told once more than need be.
func (d *Dedup) trim(now time.Time) {
	for k, v := range d.seen {
		if now.Sub(v.event.LastTimestamp.Time) >= window {
			delete(d.seen, k)
		}
	}
	for t, v := range d.topics {
		if now.Sub(v.last) >= window {
			delete(d.topics, t)
		}
	}
	if len(d.seen) >= maxEntries {
		clear(d.seen)
		clear(d.topics)
	}
}
