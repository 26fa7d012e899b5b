package podsapi

import (
	"log/slog"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	api "k8s.io/kubelet/pkg/apis/pods/v1alpha1"

	"github.com/sublet-dev/agent/internal/grpcsocket"
	"github.com/sublet-dev/agent/podwatch"
)

// sendTimeout is how long a client may leave an event unread when its buffers are full.
const sendTimeout = time.Minute

// WatchPods streams all pods and then their changes: see the documentation of the package.
func (s *Server) WatchPods(_ *api.WatchPodsRequest, stream grpc.ServerStreamingServer[api.WatchPodsEvent]) error {
	if err := s.checkReady(); err != nil {
		return err
	}
	select {
	case s.watches <- struct{}{}:
		defer func() { <-s.watches }()
	default:
		return status.Errorf(codes.ResourceExhausted, "more than %d watches", maxWatches)
	}
	w := &watcher{server: s, stream: stream, sent: make(map[types.UID]struct{}), unread: time.NewTimer(sendTimeout)}
	defer w.unread.Stop()
	w.unread.Stop()
	ended := make(chan error, 1)
	go func() { ended <- grpcsocket.Recover(s.cfg.Logger, "WatchPods", w.run) }()
	select {
	case err := <-ended:
		return err
	case <-w.unread.C: // the end of this call cancels the Send that blocks
		s.cfg.Logger.Warn("watch of pods ended: its client does not read", slog.Duration("timeout", sendTimeout))
		return status.Errorf(codes.ResourceExhausted, "no event was read for %v; watch again", sendTimeout)
	}
}

// watcher is one call of WatchPods.
type watcher struct {
	server *Server
	stream grpc.ServerStreamingServer[api.WatchPodsEvent]
	sent   map[types.UID]struct{} // pods that the client knows
	unread *time.Timer            // runs during a Send
}

// run sends events until the call ends.
func (w *watcher) run() error {
	ctx := w.stream.Context()
	statuses, listed := make(map[types.UID]*corev1.PodStatus), false
	for e := range w.server.cfg.WatchList(ctx) {
		var err error
		switch {
		case e.Type == watch.Bookmark:
			listed = true
			err = w.list(statuses)
			statuses = nil
		case listed:
			err = w.change(e)
		default:
			statuses[e.Pod.UID] = &e.Pod.Status
		}
		if err != nil {
			return err
		}
	}
	return status.FromContextError(ctx.Err()).Err()
}

// list sends the pods that there are. Their statuses are those after which the changes come, so that
// none seems to go back to an earlier state.
func (w *watcher) list(statuses map[types.UID]*corev1.PodStatus) error {
	for _, pod := range w.server.pods() {
		if st := statuses[pod.UID]; st != nil {
			now := *pod
			now.Status = *st
			pod = &now
		}
		if err := w.send(api.EventType_ADDED, pod); err != nil {
			return err
		}
	}
	return w.send(api.EventType_INITIAL_SYNC_COMPLETE, nil)
}

// change sends a change of a pod. A client that has missed states of a deleted pod gets
// the last one before the deletion.
func (w *watcher) change(e podwatch.Event) error {
	_, known := w.sent[e.Pod.UID]
	deleted := e.Type == watch.Deleted
	w.reportMissed(e)
	if !deleted || e.Missed > 0 {
		kind := api.EventType_ADDED
		if known {
			kind = api.EventType_MODIFIED
		}
		known = true
		if err := w.send(kind, e.Pod); err != nil {
			return err
		}
	}
	if !deleted || !known {
		return nil
	}
	return w.send(api.EventType_DELETED, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: e.Pod.Namespace, Name: e.Pod.Name, UID: e.Pod.UID}})
}

// reportMissed calls the hook for states that the client does not get. Of those before a deletion it gets the last one.
func (w *watcher) reportMissed(e podwatch.Event) {
	missed := e.Missed
	if e.Type == watch.Deleted {
		missed--
	}
	if called := w.server.cfg.Hooks.StatesMissed; called != nil && missed > 0 {
		called(missed)
	}
}

// send sends an event, of a pod if it is not nil.
func (w *watcher) send(kind api.EventType, pod *corev1.Pod) error {
	event := &api.WatchPodsEvent{Type: kind}
	if pod != nil {
		b, err := encode(pod)
		if err != nil {
			return err
		}
		event.Pod = b
		w.sent[pod.UID] = struct{}{}
		if kind == api.EventType_DELETED {
			delete(w.sent, pod.UID)
		}
	}
	w.unread.Reset(sendTimeout)
	defer w.unread.Stop()
	return w.stream.Send(event)
}
