package embedded

import (
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/internal/notify"
)

// broadcaster sends events to every reader, in order. The stream of a reader that lags
// too far behind ends.
type broadcaster struct {
	limit int

	mu      sync.Mutex // guards the rest; taken under Runtime.mu, never the other way
	closed  bool
	readers map[*reader]struct{}
}

// reader is one event stream. Its broadcaster's mu guards it.
type reader struct {
	queue    []*v1.ContainerEventResponse
	overrun  bool
	finished bool
	wakeCh   chan struct{} // one slot
}

func newBroadcaster(limit int) *broadcaster {
	return &broadcaster{limit: limit, readers: map[*reader]struct{}{}}
}

func (b *broadcaster) subscribe() *reader {
	rd := &reader{wakeCh: make(chan struct{}, 1)}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		rd.finished = true
		notify.Send(rd.wakeCh)
		return rd
	}
	b.readers[rd] = struct{}{}
	return rd
}

func (b *broadcaster) unsubscribe(rd *reader) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.readers, rd)
}

// hasReaders reports whether an event would be read, so that it need not be made
// otherwise.
func (b *broadcaster) hasReaders() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.readers) > 0
}

// send never blocks.
func (b *broadcaster) send(e *v1.ContainerEventResponse) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for rd := range b.readers {
		if len(rd.queue) >= b.limit {
			rd.overrun = true
			rd.queue = nil
			delete(b.readers, rd)
		} else {
			rd.queue = append(rd.queue, e)
		}
		notify.Send(rd.wakeCh)
	}
}

func (b *broadcaster) close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	for rd := range b.readers {
		rd.finished = true
		notify.Send(rd.wakeCh)
	}
	clear(b.readers)
}

// take returns the pending events of rd, and the error that ends its stream, if any.
func (b *broadcaster) take(rd *reader) ([]*v1.ContainerEventResponse, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	q := rd.queue
	rd.queue = nil
	switch {
	case rd.overrun:
		return nil, status.Errorf(codes.ResourceExhausted, "event stream: the reader lags more than %d events behind; list again", b.limit)
	case rd.finished:
		return q, errClosed()
	}
	return q, nil
}

// emit sends an event of a sandbox or one of its containers. The caller holds mu, which
// keeps events in the order of the changes.
func (r *Runtime) emit(s *sandbox, id string, t v1.ContainerEventType) {
	if !r.events.hasReaders() {
		return
	}
	e := &v1.ContainerEventResponse{
		ContainerId: id, ContainerEventType: t, CreatedAt: time.Now().UnixNano(), PodSandboxStatus: s.status(),
	}
	for _, c := range s.containers {
		if c.ready {
			e.ContainersStatuses = append(e.ContainersStatuses, c.status())
		}
	}
	r.events.send(e)
}

// GetContainerEvents implements the CRI: events of sandboxes and containers from now
// on, each with the state of the pod right after it. Headers are sent at once, so that
// a client knows when it is subscribed.
func (r *Runtime) GetContainerEvents(_ *v1.GetEventsRequest, to grpc.ServerStreamingServer[v1.ContainerEventResponse]) error {
	rd := r.events.subscribe()
	defer r.events.unsubscribe(rd)
	if err := to.SendHeader(nil); err != nil {
		return err
	}
	for {
		select {
		case <-to.Context().Done():
			return status.FromContextError(to.Context().Err()).Err()
		case <-rd.wakeCh:
		}
		events, end := r.events.take(rd)
		for _, e := range events {
			if err := to.Send(e); err != nil {
				return err
			}
		}
		if end != nil {
			return end
		}
	}
}
