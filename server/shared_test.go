package server_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sublet-dev/agent/server"
)

// scrapes serves metrics that take a second, and a number that is the count of measurements.
type scrapes struct {
	*server.Server
	made, atOnce, most atomic.Int32
}

func newScrapes(t *testing.T) *scrapes {
	t.Helper()
	s := &scrapes{}
	measure := func(ctx context.Context) (int32, error) {
		defer s.atOnce.Add(-1)
		now := s.atOnce.Add(1)
		for most := s.most.Load(); now > most && !s.most.CompareAndSwap(most, now); most = s.most.Load() {
		}
		select {
		case <-time.After(time.Second):
			return s.made.Add(1), nil
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
	var err error
	s.Server, err = server.New(server.Config{
		Addr: "127.0.0.1:0",
		Handlers: map[string]http.Handler{"/metrics/cadvisor": http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			n, err := measure(r.Context())
			if r.URL.Query().Has("panic") {
				panic("broken")
			}
			if err != nil {
				return
			}
			w.Header().Set("Content-Type", "text/plain")
			w.WriteHeader(http.StatusAccepted)
			_, _ = fmt.Fprint(w, n)
		})},
		Summary: func(ctx context.Context, _ bool) (any, error) { return measure(ctx) },
	})
	require.NoError(t, err)
	return s
}

// get answers one request, with an Accept header.
func (s *scrapes) get(ctx context.Context, method, path, accept string) *httptest.ResponseRecorder {
	r := httptest.NewRequestWithContext(ctx, method, path, http.NoBody)
	r.Header.Set("Accept", accept)
	w := httptest.NewRecorder()
	s.ServeHTTP(w, r)
	return w
}

// Any number of scrapers at once costs one measurement, and each later one has its own. SV-6
func TestServe_SharesMeasurements(t *testing.T) {
	for path, want := range map[string]string{"/metrics/cadvisor": "1", "/stats/summary": "1\n"} {
		synctest.Test(t, func(t *testing.T) {
			s := newScrapes(t)
			var all sync.WaitGroup
			for range 20 {
				all.Go(func() {
					w := s.get(t.Context(), http.MethodGet, path, "")
					assert.Equal(t, want, w.Body.String())
					if path == "/metrics/cadvisor" {
						assert.Equal(t, http.StatusAccepted, w.Code)
						assert.Equal(t, "text/plain", w.Header().Get("Content-Type"))
					}
				})
			}
			all.Wait()
			assert.Equal(t, "2", s.get(t.Context(), http.MethodGet, path, "").Body.String()[:1])
		})
	}
}

// Answers for different requests are made for each, a few at once.
func TestServe_LimitsMeasurements(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScrapes(t)
		began := time.Now()
		var all sync.WaitGroup
		for i := range 6 {
			all.Go(func() { s.get(t.Context(), http.MethodGet, "/metrics/cadvisor", fmt.Sprint("text/", i)) })
			all.Go(func() { s.get(t.Context(), http.MethodPost, "/metrics/cadvisor", "") })
		}
		all.Wait()
		assert.Equal(t, int32(12), s.made.Load())
		assert.Equal(t, int32(4), s.most.Load())
		assert.Equal(t, 3*time.Second, time.Since(began))
	})
}

// slowClient receives its answer only at the end.
type slowClient struct {
	*httptest.ResponseRecorder
	end <-chan struct{}
}

func (c slowClient) Write(b []byte) (int, error) {
	<-c.end
	return c.ResponseRecorder.Write(b)
}

// Answers that slow clients have not received take the memory of a few, and each makes place for another when its client has it or goes. SV-6
func TestServe_LimitsAnswersOfSlowClients(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScrapes(t)
		var all sync.WaitGroup
		end := make(chan struct{})
		ctx, cancel := context.WithCancel(t.Context())
		for i := range 40 {
			all.Go(func() {
				r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, fmt.Sprint("/metrics/cadvisor?", i), http.NoBody)
				if i < 20 {
					r = r.WithContext(ctx)
				}
				s.ServeHTTP(slowClient{httptest.NewRecorder(), end}, r)
			})
			synctest.Wait() // they come in this order
		}
		time.Sleep(time.Minute)
		assert.Equal(t, int32(16), s.made.Load())
		cancel() // of 16 that have answers, and of 4 that have none
		time.Sleep(time.Minute)
		assert.Equal(t, int32(32), s.made.Load())
		close(end)
		all.Wait()
		assert.Equal(t, int32(36), s.made.Load())
		assert.Equal(t, "37", s.get(t.Context(), http.MethodGet, "/metrics/cadvisor", "").Body.String())
	})
}

// A client that goes takes nothing from the others. When all have gone, the measurement ends.
func TestServe_ScrapersThatGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScrapes(t)
		contexts := make([]context.Context, 3)
		cancels := make([]context.CancelFunc, len(contexts))
		answers := make([]*httptest.ResponseRecorder, len(contexts))
		var all sync.WaitGroup
		for i := range contexts {
			contexts[i], cancels[i] = context.WithCancel(t.Context())
			all.Go(func() { answers[i] = s.get(contexts[i], http.MethodGet, "/metrics/cadvisor", "") })
			synctest.Wait()
		}
		cancels[0]() // that for which it is made
		cancels[1]()
		all.Wait()
		assert.Equal(t, "1", answers[2].Body.String())
		cancels[2]()

		began := time.Now()
		for i := range contexts {
			contexts[i], cancels[i] = context.WithCancel(t.Context())
			all.Go(func() { s.get(contexts[i], http.MethodGet, "/metrics/cadvisor", "") })
			synctest.Wait()
		}
		for _, cancel := range cancels {
			cancel()
		}
		all.Wait()
		assert.Zero(t, time.Since(began))
		assert.Equal(t, "2", s.get(t.Context(), http.MethodGet, "/metrics/cadvisor", "").Body.String())
	})
}

// A panic is that of one request; the others learn that they have to ask again.
func TestServe_PanicInASharedMeasurement(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScrapes(t)
		var all sync.WaitGroup
		all.Go(func() {
			assert.PanicsWithValue(t, "broken", func() { s.get(t.Context(), http.MethodGet, "/metrics/cadvisor?panic", "") })
		})
		synctest.Wait()
		all.Go(func() {
			assert.Equal(t, http.StatusServiceUnavailable, s.get(t.Context(), http.MethodGet, "/metrics/cadvisor?panic", "").Code)
		})
		all.Wait()
	})
}
