package server

import (
	"bytes"
	"context"
	"maps"
	"net/http"
	"strings"
	"sync"
)

// maxMeasurements is how many answers of one path are made at once: those of different clients, such as Prometheus and one
// without compression.
const maxMeasurements = 4

// maxAnswers is how many answers of one path are in memory: those that are made, and those that slow clients have not received yet.
const maxAnswers = 16

// isMetrics reports whether a path of Config.Handlers has metrics, which are expensive to make on a node with many pods.
func isMetrics(path string) bool { return path == "/metrics" || strings.HasPrefix(path, "/metrics/") }

// shared serves what is expensive to make, and the same for all: equal requests that come while one is served get its answer.
// Any number of clients costs the memory and the time of a few. What is made is sent to each at its own pace.
type shared struct {
	next  http.Handler
	slots chan struct{} // of measurements
	kept  chan struct{} // of answers, a slot for each in memory

	mu      sync.Mutex // guards all below, and the clients and isMade of answers
	answers map[string]*answer
}

func share(next http.Handler) *shared {
	return &shared{next: next, slots: make(chan struct{}, maxMeasurements), kept: make(chan struct{}, maxAnswers), answers: map[string]*answer{}}
}

// answer is a response that is made for clients. It implements http.ResponseWriter.
type answer struct {
	key     string
	clients int
	cancel  context.CancelFunc // when no client is left
	isMade  bool               // or will not be
	hasSlot bool               // of shared.kept; is written before isMade

	done   chan struct{} // closed when all below is complete
	header http.Header
	status int
	body   bytes.Buffer
	// isComplete is false after a panic, and if all clients have gone.
	isComplete bool
}

// ServeHTTP implements http.Handler.
func (s *shared) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(r.Context()))
	defer cancel()
	a, isFirst := s.join(r, cancel)
	stays := context.AfterFunc(r.Context(), func() { s.leave(a) })
	defer func() {
		if stays() {
			s.leave(a)
		}
	}()
	if isFirst {
		s.make(ctx, a, r)
	}
	select {
	case <-a.done:
		a.send(w)
	case <-r.Context().Done():
	}
}

// join returns the answer that is made for equal requests, or a new one, which the caller makes.
func (s *shared) join(r *http.Request, cancel context.CancelFunc) (a *answer, isFirst bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := strings.Join([]string{r.URL.RequestURI(), r.Header.Get("Accept"), r.Header.Get("Accept-Encoding")}, "\n")
	if a := s.answers[key]; a != nil && r.Method == http.MethodGet {
		a.clients++
		return a, false
	}
	a = &answer{key: key, clients: 1, cancel: cancel, done: make(chan struct{}), header: http.Header{}}
	if r.Method == http.MethodGet {
		s.answers[key] = a
	}
	return a, true
}

// leave ends an answer when its last client has received it, or has gone.
func (s *shared) leave(a *answer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if a.clients--; a.clients == 0 {
		s.forget(a)
		a.cancel()
		s.release(a)
	}
}

// release gives the slot of an answer back that nothing makes and no client receives. The caller has locked mu.
func (s *shared) release(a *answer) {
	if a.isMade && a.clients == 0 && a.hasSlot {
		<-s.kept
	}
}

// forget has the next request make an answer of its own.
func (s *shared) forget(a *answer) {
	if s.answers[a.key] == a {
		delete(s.answers, a.key)
	}
}

// make makes an answer, for others also when the client of r has gone.
func (s *shared) make(ctx context.Context, a *answer, r *http.Request) {
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.forget(a)
		a.isMade = true
		s.release(a)
		close(a.done)
	}()
	select {
	case s.kept <- struct{}{}:
		a.hasSlot = true
	case <-ctx.Done():
		return
	}
	select {
	case s.slots <- struct{}{}:
	case <-ctx.Done():
		return
	}
	defer func() { <-s.slots }()
	s.next.ServeHTTP(a, r.WithContext(ctx))
	a.WriteHeader(http.StatusOK)
	a.isComplete = true
}

// Header implements http.ResponseWriter.
func (a *answer) Header() http.Header { return a.header }

// WriteHeader implements http.ResponseWriter.
func (a *answer) WriteHeader(status int) {
	if a.status == 0 {
		a.status = status
	}
}

// Write implements http.ResponseWriter.
func (a *answer) Write(b []byte) (int, error) {
	a.WriteHeader(http.StatusOK)
	return a.body.Write(b)
}

// send sends a complete answer to one of its clients.
func (a *answer) send(w http.ResponseWriter) {
	if !a.isComplete {
		http.Error(w, "the measurement was interrupted", http.StatusServiceUnavailable)
		return
	}
	maps.Copy(w.Header(), a.header)
	w.WriteHeader(a.status)
	_, _ = w.Write(a.body.Bytes()) // the client may have gone
}
