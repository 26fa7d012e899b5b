package ui_test

import (
	"context"
	"errors"
	"math"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/server/ui"
	"github.com/sublet-dev/agent/timeline"
)

// failingWriter fails from one of its writes on.
type failingWriter struct {
	*httptest.ResponseRecorder
	writes int // that succeed
	failed int
}

func (w *failingWriter) Write(b []byte) (int, error) {
	if w.writes == 0 {
		w.failed++
		return 0, errors.New("client is gone")
	}
	w.writes--
	return w.ResponseRecorder.Write(b)
}

// A client that is gone ends its stream at the first message that it does not get.
func TestPage_EventsEndWithTheClient(t *testing.T) {
	for writes, after := range map[int]time.Duration{0: 0, 1: 0, 2: 15250 * time.Millisecond, 3: 30250 * time.Millisecond} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
			defer cancel()
			w, start := &failingWriter{ResponseRecorder: httptest.NewRecorder(), writes: writes}, time.Now()
			newPage(t, timeline.New(timeline.Config{})).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/events", http.NoBody).WithContext(ctx))
			assert.Equal(t, after, time.Since(start))
			assert.Equal(t, 1, w.failed)
			assert.Equal(t, "no", w.Header().Get("X-Accel-Buffering"), "proxies pass on each message")
		})
	}
}

// oddHistory has what JSON cannot have.
type oddHistory struct{}

func (oddHistory) Changes(uint64) timeline.Changes {
	return timeline.Changes{Node: timeline.Node{Samples: []timeline.Sample{{MemoryPressure: math.NaN()}}}}
}

func (oddHistory) Wait(ctx context.Context, _ uint64) error {
	<-ctx.Done()
	return ctx.Err()
}

func (oddHistory) Pod(types.UID) (timeline.Timeline, bool) { return timeline.Timeline{}, false }

func TestPage_WhatCannotBeEncoded(t *testing.T) {
	p, err := ui.New(ui.Config{History: oddHistory{}})
	require.NoError(t, err)
	w := httptest.NewRecorder()
	p.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/state", http.NoBody))
	assert.Equal(t, http.StatusInternalServerError, w.Code)
	w = httptest.NewRecorder()
	p.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/events", http.NoBody))
	assert.Equal(t, "retry: 2000\n\n", w.Body.String(), "it ends")
	w = httptest.NewRecorder()
	p.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", http.NoBody))
	assert.Equal(t, "text/html; charset=utf-8", w.Header().Get("Content-Type"))
}
