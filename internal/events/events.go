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
	keep    = 10 * time.Minute // how long an event is remembered
	most    = 4096             // how many are remembered at the most
	quiet   = time.Minute      // between two tellings of one event
	maxText = 1024             // bytes of a message, as the API server allows
)

// key is what makes two events the same one.
type key struct{ uid, kind, reason, message string }

type known struct {
	event *corev1.Event
	told  time.Time
}

// Dedup passes an event on when it is new. One that repeats within ten minutes
// is counted, and passed on again at most once a minute, under its first name
// and with its count. At most 4096 events are remembered.
type Dedup struct {
	next Recorder

	mu   sync.Mutex // guards seen, held over memory only
	seen map[key]*known
}

// New returns a Dedup in front of next; a nil next drops everything.
func New(next Recorder) *Dedup { return &Dedup{next: next, seen: map[key]*known{}} }

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
	message := clip(e.Message)
	k := key{string(e.InvolvedObject.UID), e.Type, e.Reason, message}
	d.mu.Lock()
	defer d.mu.Unlock()
	if old := d.seen[k]; old != nil && now.Sub(old.event.LastTimestamp.Time) < keep {
		old.event.Count++
		old.event.LastTimestamp = metav1.NewTime(now)
		if now.Sub(old.told) < quiet {
			return nil
		}
		old.told = now
		return old.event.DeepCopy()
	}
	if len(d.seen) >= most {
		d.trim(now)
	}
	e = e.DeepCopy()
	e.Message, e.Count = message, 1
	d.seen[k] = &known{event: e, told: now}
	return e.DeepCopy()
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
		if now.Sub(v.event.LastTimestamp.Time) >= keep {
			delete(d.seen, k)
		}
	}
	if len(d.seen) >= most {
		clear(d.seen)
	}
}
