package imagegc_test

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sublet-dev/agent/imagegc"
	"github.com/sublet-dev/agent/internal/logtest"
)

// IG-6
func TestCollector_RunWaitsUntilImagesOfPodsAreKnown(t *testing.T) {
	notYet := errors.New("not yet")
	// until returns nil after a time.
	until := func(d time.Duration) func() error {
		startTime := time.Now()
		return func() error {
			if time.Since(startTime) < d {
				return notYet
			}
			return nil
		}
	}
	for name, tt := range map[string]struct {
		ready, unsynced, timeout, want time.Duration
		warns                          bool
	}{
		"collects at once": {want: 0},
		"waits for the pods in the runtime without a limit": {ready: time.Hour, want: time.Hour},
		"waits for sources": {unsynced: time.Minute, want: time.Minute},
		"does not wait for sources for longer than 2 minutes": {unsynced: time.Hour, want: 2 * time.Minute, warns: true},
		"nor for longer than the configured time":             {unsynced: time.Hour, timeout: 10 * time.Second, want: 10 * time.Second, warns: true},
		"the time for sources begins with Run":                {ready: 5 * time.Minute, unsynced: time.Hour, want: 5 * time.Minute, warns: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var log logtest.Buffer
				var collectedAt atomic.Pointer[time.Duration]
				startTime := time.Now()
				c := collector(t, imagegc.Config{
					Images: newStore(1000), Ready: until(tt.ready), Unsynced: until(tt.unsynced), SourcesTimeout: tt.timeout,
					Logger: slog.New(slog.NewTextHandler(&log, nil)),
					Hooks: imagegc.Hooks{Collected: func(imagegc.Result, error) {
						collectedAt.CompareAndSwap(nil, new(time.Since(startTime)))
					}},
				})
				_, err := c.Explain(t.Context(), true)
				require.ErrorIs(t, err, imagegc.ErrNotReady)
				ctx, cancel := context.WithCancel(t.Context())
				done := make(chan error)
				go func() { done <- c.Run(ctx) }()
				time.Sleep(2 * time.Hour)
				require.NotNil(t, collectedAt.Load())
				assert.Equal(t, tt.want, *collectedAt.Load())
				if tt.warns {
					assert.Contains(t, log.String(), `msg="image garbage collection starts before all sources have synced" err="not yet"`)
				} else {
					assert.Empty(t, log.String())
				}
				_, err = c.Explain(t.Context(), true)
				require.NoError(t, err)
				cancel()
				require.NoError(t, <-done)
			})
		})
	}
}

// Without Ready and Unsynced, images can be explained without Run.
func TestCollector_ExplainIsReadyByDefault(t *testing.T) {
	_, err := collector(t, imagegc.Config{Images: newStore(1)}).Explain(t.Context(), true)
	require.NoError(t, err)
	ready := func() error { return nil }
	for _, cfg := range []imagegc.Config{{Images: newStore(1), Ready: ready}, {Images: newStore(1), Unsynced: ready}} {
		_, err := collector(t, cfg).Explain(t.Context(), true)
		require.ErrorIs(t, err, imagegc.ErrNotReady)
	}
}

// A Run that is stopped before it is ready has collected nothing.
func TestCollector_StopsWhileItWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := collector(t, imagegc.Config{
			Images: newStore(1000), Ready: func() error { panic("defect") },
			Hooks: imagegc.Hooks{Collected: func(imagegc.Result, error) { t.Error("collected") }},
		})
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		require.NoError(t, c.Run(ctx))
		_, err := c.Explain(t.Context(), true)
		require.ErrorIs(t, err, imagegc.ErrNotReady, "a check that panics has not succeeded")
	})
}

// IG-6: images of pods of the previous process are kept, also when disk space is needed.
func TestCollector_RestoreProtectsImages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(1000)
		kept := s.pull("kept", 100)
		s.pull("unused", 100)
		c := collector(t, imagegc.Config{Images: s, Policy: imagegc.Policy{MinAge: -1}})
		c.Restore(&corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{UID: "u"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Image: "reg.io/kept:1"}}},
		})
		require.NoError(t, c.Reclaim(t.Context()))
		require.Equal(t, []string{kept}, s.ids())
		c.Release("u")
		require.NoError(t, c.Reclaim(t.Context()))
		require.Empty(t, s.ids())
	})
}
