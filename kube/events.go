package kube

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"

	"github.com/sublet-dev/agent/internal/events"
	"github.com/sublet-dev/agent/internal/logattr"
	"github.com/sublet-dev/agent/internal/notify"
	"github.com/sublet-dev/agent/internal/sleep"
	"github.com/sublet-dev/agent/podspec"
)

const (
	maxQueuedEvents = 1000
	maxEventTries   = 12 // as client-go
	eventBackOff    = 10 * time.Second
	eventTimeout    = 30 * time.Second

	kubeletComponent = "kubelet"
)

// Events is a recorder that writes Kubernetes events to the API server, correlated as
// client-go does it: a repeated event is counted, similar ones are combined, and an
// object has at most 25 events at once and one every five minutes after that.
//
// Events about the Node have its UID from when it is known, so that clients that select by it find
// them. The source of the agent's own events is "kubelet", by which clients select the events of
// nodes. Record never blocks. Kube.Run writes the events, one after another. While the API
// server is away the last 1000 wait, each for up to two minutes of attempts.
type Events struct {
	k          *Kube
	correlator *record.EventCorrelator // used by run only
	wake       chan struct{}           // one slot: queue is not empty

	mu      sync.Mutex // guards what follows
	queue   []*corev1.Event
	nodeUID types.UID // empty: not known yet
}

// setNode has later events about the Node refer to this one.
func (e *Events) setNode(node *corev1.Node) {
	if node == nil {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.nodeUID = node.UID
}

// Events returns the recorder of events. All calls return the same one.
func (k *Kube) Events() *Events { return k.events }

// Record queues an event. The oldest is dropped if there are too many.
func (e *Events) Record(event *corev1.Event) {
	event = event.DeepCopy()
	if event.Source.Component == podspec.EventComponent {
		event.Source.Component = kubeletComponent
	}
	if event.ReportingController == podspec.EventComponent {
		event.ReportingController = kubeletComponent
	}
	e.mu.Lock()
	if o := &event.InvolvedObject; o.Kind == "Node" && o.Name == e.k.cfg.NodeName && o.UID == "" {
		o.UID = e.nodeUID
	}
	if len(e.queue) == maxQueuedEvents {
		e.queue = e.queue[1:]
	}
	e.queue = append(e.queue, event)
	e.mu.Unlock()
	notify.Send(e.wake)
}

// next returns the oldest event, or nil.
func (e *Events) next() *corev1.Event {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.queue) == 0 {
		return nil
	}
	event := e.queue[0]
	e.queue = e.queue[1:]
	return event
}

// run writes events until ctx is done, and then those that are queued while the API
// server takes them, for at most a second.
func (e *Events) run(ctx context.Context) {
	for {
		unsent := e.writeAll(ctx)
		select {
		case <-ctx.Done():
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
			defer cancel()
			if unsent == nil || e.write(ctx, unsent) {
				e.writeAll(ctx)
			}
			return
		case <-e.wake:
		}
	}
}

// writeAll writes the queued events until ctx is done. It returns the event whose write
// that has interrupted.
func (e *Events) writeAll(ctx context.Context) (unsent *corev1.Event) {
	for ctx.Err() == nil {
		event := e.next()
		if event == nil {
			return nil
		}
		r, err := e.correlator.EventCorrelate(event)
		if err != nil || r.Skip {
			continue
		}
		// A recorder before this one may have counted, too.
		r.Event.Count = max(r.Event.Count, event.Count)
		if !e.write(ctx, r.Event) {
			return r.Event
		}
	}
	return nil
}

// write writes an event, again after a pause if the API server cannot be reached. It
// returns false if ctx ended before the event was written or dropped.
func (e *Events) write(ctx context.Context, event *corev1.Event) bool {
	for try := 1; ; try++ {
		written, err := e.send(ctx, event)
		if err == nil {
			e.correlator.UpdateState(written)
			return true
		}
		if apierrors.IsAlreadyExists(err) || apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
			return true
		}
		if ctx.Err() != nil {
			return false
		}
		if isRejected(err) || try == maxEventTries {
			e.k.cfg.Logger.Warn("event dropped", logattr.PodName(event.InvolvedObject.Namespace, event.InvolvedObject.Name), logattr.Err(err))
			return true
		}
		if sleep.For(ctx, eventBackOff) != nil {
			return false
		}
	}
}

// newCorrelator returns the correlator of client-go. It takes an event that the recorder before this one has combined
// from others as it is: combined once more, its prefix would be there twice and its count be that of two.
func newCorrelator() *record.EventCorrelator {
	return record.NewEventCorrelatorWithOptions(record.CorrelatorOptions{KeyFunc: func(event *corev1.Event) (aggregateKey, localKey string) {
		aggregateKey, localKey = record.EventAggregatorByReasonFunc(event)
		if strings.HasPrefix(event.Message, events.CombinedPrefix) {
			return aggregateKey + events.CombinedPrefix + event.InvolvedObject.FieldPath, ""
		}
		return aggregateKey, localKey
	}})
}

// isRejected reports whether the server understood a request and will reject it again.
func isRejected(err error) bool {
	var status *apierrors.StatusError
	return errors.As(err, &status) && status.ErrStatus.Code >= 400 && status.ErrStatus.Code < 500 && !apierrors.IsTooManyRequests(err) &&
		!apierrors.IsTimeout(err)
}

// send creates an event, or updates one that was written before.
func (e *Events) send(ctx context.Context, event *corev1.Event) (*corev1.Event, error) {
	ctx, cancel := context.WithTimeout(ctx, eventTimeout)
	defer cancel()
	client := e.k.cfg.EventClient.CoreV1().Events(event.Namespace)
	if event.Count > 1 {
		patch, err := json.Marshal(map[string]any{
			"count": event.Count, "message": event.Message, "lastTimestamp": event.LastTimestamp,
		})
		if err != nil {
			return nil, err
		}
		written, err := client.Patch(ctx, event.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{})
		if !apierrors.IsNotFound(err) {
			return written, err
		}
	}
	event = event.DeepCopy()
	event.ResourceVersion = ""
	return client.Create(ctx, event, metav1.CreateOptions{})
}
