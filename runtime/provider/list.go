package provider

import (
	"context"
	"sync"

	corev1 "k8s.io/api/core/v1"
)

// lister lists pods for several callers at once. A caller gets a list that was begun after
// its call. One list is made at a time.
type lister struct {
	fetch func(ctx context.Context) ([]*corev1.Pod, error)

	mu      sync.Mutex
	running bool
	next    *listing // nil: no caller waits for one
}

// listing is one list. pods and err may be read after done was closed.
type listing struct {
	done chan struct{}
	pods []*corev1.Pod
	err  error
}

// get returns a list that was begun after the call. The pods are shared and read-only.
func (l *lister) get(ctx context.Context) ([]*corev1.Pod, error) {
	l.mu.Lock()
	if l.next == nil {
		l.next = &listing{done: make(chan struct{})}
	}
	mine := l.next
	if !l.running {
		l.running = true
		go l.run(context.WithoutCancel(ctx)) // other callers may wait for its lists too
	}
	l.mu.Unlock()
	select {
	case <-mine.done:
		return mine.pods, mine.err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// run makes lists until no caller waits for one.
func (l *lister) run(ctx context.Context) {
	for {
		l.mu.Lock()
		current := l.next
		l.next = nil
		if current == nil {
			l.running = false
			l.mu.Unlock()
			return
		}
		l.mu.Unlock()
		current.pods, current.err = l.fetch(ctx)
		close(current.done)
	}
}
