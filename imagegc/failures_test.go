package imagegc_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/imagegc"
	"github.com/sublet-dev/agent/internal/logtest"
	"github.com/sublet-dev/agent/runtime"
)

// failing is a store whose calls return errors from a given call on.
type failing struct {
	*store

	images, inUse, fs int // number of calls that succeed; negative: all
	err               error
}

func newFailing() *failing {
	return &failing{store: newStore(1000), images: -1, inUse: -1, fs: -1, err: errors.New("boom")}
}

func (f *failing) fails(calls *int) error {
	if *calls == 0 {
		return f.err
	}
	*calls--
	return nil
}

func (f *failing) Images(ctx context.Context) ([]runtime.Image, error) {
	if err := f.fails(&f.images); err != nil {
		return nil, err
	}
	return f.store.Images(ctx)
}

func (f *failing) ImagesInUse(ctx context.Context) ([]string, error) {
	if err := f.fails(&f.inUse); err != nil {
		return nil, err
	}
	return f.store.ImagesInUse(ctx)
}

func (f *failing) ImageFS(ctx context.Context) (images, containers []runtime.FSUsage, err error) {
	if err := f.fails(&f.fs); err != nil {
		return nil, nil, err
	}
	return f.store.ImageFS(ctx)
}

// Each failure while the snapshot is taken is returned, and no image is removed. A
// failure during a removal is returned with what was removed so far.
func TestCollector_ReturnsErrorsOfTheRuntime(t *testing.T) {
	for _, tc := range []struct {
		name    string
		fail    func(*failing)
		removed int
		text    string
	}{
		{"listing images", func(f *failing) { f.images = 0 }, 0, "list images: boom"},
		{"listing images in use", func(f *failing) { f.inUse = 0 }, 0, "list images in use: boom"},
		{"measuring", func(f *failing) { f.fs = 0 }, 0, "measure image file system: boom"},
		{"listing images before a removal", func(f *failing) { f.images = 1 }, 0, "list images: boom"},
		{"listing images in use before a removal", func(f *failing) { f.inUse = 1 }, 0, "list images in use: boom"},
		{"measuring after a removal", func(f *failing) { f.fs = 1 }, 2, "measure image file system: boom"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFailing()
				f.pull("a", 100)
				f.pull("b", 100)
				recorder := &fakeRecorder{}
				c := collector(t, imagegc.Config{Images: f, Recorder: recorder, NodeName: "node"})
				_, err := c.Collect(t.Context())
				require.NoError(t, err)
				time.Sleep(time.Hour)
				tc.fail(f)
				result, err := c.DeleteUnused(t.Context())
				require.ErrorIs(t, err, f.err)
				require.ErrorContains(t, err, tc.text)
				assert.Len(t, f.removed, tc.removed)
				assert.Len(t, result.Removed, tc.removed)
				require.Len(t, recorder.events, 1)
				assert.Equal(t, "ImageGCFailed", recorder.events[0].Reason)
				assert.Contains(t, recorder.events[0].Message, tc.text)
				_, err = c.Explain(t.Context(), true)
				if tc.removed == 0 && f.images == 0 {
					require.ErrorIs(t, err, f.err)
				}
			})
		})
	}
}

// The error of an unavailable file system names its mount point.
func TestCollector_ReturnsErrorsOfStatfs(t *testing.T) {
	boom := errors.New("boom")
	c := collector(t, imagegc.Config{
		Images: &lagging{store: newStore(1000)},
		Statfs: func(string) (runtime.FSUsage, error) { return runtime.FSUsage{}, boom },
	})
	_, err := c.Collect(t.Context())
	require.ErrorIs(t, err, boom)
	require.ErrorContains(t, err, "measure image file system at /images: boom")
}

// A collection whose context is done removes nothing more, returns the cause, and
// records no event when it was canceled.
func TestCollector_StopsWhenContextIsDone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(1000)
		s.pull("a", 100)
		s.pull("b", 100)
		recorder := &fakeRecorder{}
		c := collector(t, imagegc.Config{Images: s, Recorder: recorder})
		_, err := c.Collect(t.Context())
		require.NoError(t, err)
		time.Sleep(time.Hour)
		ctx, cancel := context.WithCancel(t.Context())
		s.onRemove = func(string) { cancel() }
		result, err := c.DeleteUnused(ctx)
		require.ErrorIs(t, err, context.Canceled)
		assert.Len(t, result.Removed, 1)
		assert.Len(t, s.removed, 1)
		assert.Empty(t, recorder.events)
		_, err = c.DeleteUnused(ctx)
		require.ErrorIs(t, err, context.Canceled)
		_, err = c.Explain(ctx, false)
		require.True(t, err == nil || errors.Is(err, context.Canceled))
		// A removed image that is pulled again is a new one.
		s.onRemove = nil
		s.pull("a", 100)
		s.pull("b", 100)
		_, err = c.DeleteUnused(t.Context())
		require.NoError(t, err)
		assert.LessOrEqual(t, len(s.removed), 2, "only the image that was never removed is old enough")
	})
}

// A collection reports its duration, and logs only if it removed something.
func TestCollector_ReportsResult(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var logged bytes.Buffer
		s := newStore(1000)
		s.pull("a", 100)
		var results []imagegc.Result
		c := collector(t, imagegc.Config{Images: s, Logger: slog.New(slog.NewTextHandler(&logged, nil)), Hooks: imagegc.Hooks{
			Collected: func(r imagegc.Result, _ error) { results = append(results, r); panic("hook") },
		}, Recorder: panickyRecorder{}})
		_, err := c.Collect(t.Context())
		require.NoError(t, err)
		assert.NotContains(t, logged.String(), "image garbage collection done")
		time.Sleep(time.Hour)
		s.slow = 3 * time.Second
		result, err := c.DeleteUnused(t.Context())
		require.NoError(t, err)
		assert.Equal(t, 3*time.Second, result.Duration)
		assert.Equal(t, result, results[1])
		assert.Contains(t, logged.String(), `msg="image garbage collection done" removed=1 bytesToFree=0 bytesFreed=100 duration=3s`)
		assert.Contains(t, logged.String(), "panic recovered")
		s.listErr = errors.New("boom")
		_, err = c.Collect(t.Context())
		require.ErrorIs(t, err, s.listErr, "a recorder that panics does not end it")
	})
}

// Records that cannot be saved are not lost: they are still in memory.
func TestCollector_ReportsFailedSave(t *testing.T) {
	var logged bytes.Buffer
	var failures []error
	c := collector(t, imagegc.Config{
		Images: newStore(1000), RecordsFile: filepath.Join(t.TempDir(), "missing", "records"), Logger: slog.New(slog.NewTextHandler(&logged, nil)),
		Hooks: imagegc.Hooks{RecordsLost: func(err error) { failures = append(failures, err) }},
	})
	_, err := c.Collect(t.Context())
	require.NoError(t, err)
	require.Len(t, failures, 1)
	require.ErrorIs(t, failures[0], imagegc.ErrImageRecords)
	assert.Contains(t, logged.String(), `level=WARN msg="saving image usage records failed" err="save image records: `)
	assert.NotContains(t, logged.String(), "lost")
}

// Run logs a failed collection and continues, and logs nothing when it ends.
func TestCollector_RunLogsFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var logged logtest.Buffer
		f := newFailing()
		f.images = 1
		c := collector(t, imagegc.Config{Images: f, Logger: slog.New(slog.NewTextHandler(&logged, nil))})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- c.Run(ctx) }()
		synctest.Wait()
		assert.Empty(t, logged.String())
		time.Sleep(6 * time.Minute)
		synctest.Wait()
		assert.Contains(t, logged.String(), `msg="image garbage collection failed" err="list images: boom"`)
		cancel()
		require.NoError(t, <-done)
		logged.Reset()
		go func() { done <- c.Run(ctx) }()
		require.NoError(t, <-done)
		assert.NotContains(t, logged.String(), "failed")
	})
}

type panickyRecorder struct{}

func (panickyRecorder) Record(*corev1.Event) { panic("recorder") }

// The limits of a configuration are inclusive where zero and equality make sense.
func TestNew_ChecksLimits(t *testing.T) {
	for _, tc := range []struct {
		policy imagegc.Policy
		settle time.Duration
		ok     bool
	}{
		{imagegc.Policy{HighThresholdPercent: 80, LowThresholdPercent: 80}, 0, false},
		{imagegc.Policy{HighThresholdPercent: 81, LowThresholdPercent: 80}, 0, true},
		{imagegc.Policy{HighThresholdPercent: -1, LowThresholdPercent: -2}, 0, false},
		{imagegc.Policy{HighThresholdPercent: 50, LowThresholdPercent: -1}, 0, false},
		{imagegc.Policy{MaxAge: -1}, 0, false},
		{imagegc.Policy{MaxAge: 2 * time.Minute}, 0, false},
		{imagegc.Policy{MaxAge: 2*time.Minute + 1}, 0, true},
		{imagegc.Policy{}, -1, false},
		{imagegc.Policy{}, 1, true},
	} {
		_, err := imagegc.New(imagegc.Config{Images: newStore(1), Policy: tc.policy, DiskSettleTime: tc.settle})
		assert.Equal(t, tc.ok, err == nil, "%+v: %v", tc, err)
	}
}

// Retain ends the leases of the other pods, and their images can be removed.
func TestCollector_RetainEndsOtherLeases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(1000)
		kept, dropped := s.pull("kept", 100), s.pull("dropped", 100)
		c := collector(t, imagegc.Config{Images: s})
		require.NoError(t, c.Lease(t.Context(), "kept", []string{"reg.io/kept:1"}))
		require.NoError(t, c.Lease(t.Context(), "dropped", []string{"reg.io/dropped:1"}))
		// A lease that is replaced does not protect the images of the previous one.
		require.NoError(t, c.Lease(t.Context(), "kept", []string{"reg.io/dropped:1"}))
		require.NoError(t, c.Lease(t.Context(), "kept", []string{"reg.io/kept:1"}))
		_, err := c.DeleteUnused(t.Context())
		require.NoError(t, err)
		time.Sleep(time.Hour)
		_, err = c.DeleteUnused(t.Context())
		require.NoError(t, err)
		require.ElementsMatch(t, []string{kept, dropped}, s.ids())
		c.Retain(func(uid types.UID) bool { return uid == "kept" })
		_, err = c.DeleteUnused(t.Context())
		require.NoError(t, err)
		require.Equal(t, []string{kept}, s.ids())
		c.Release("kept")
		_, err = c.DeleteUnused(t.Context())
		require.NoError(t, err)
		require.Empty(t, s.ids())
		// After a removal has ended, a lease does not wait for it.
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		require.NoError(t, c.Lease(ctx, "late", []string{"reg.io/kept:1"}))
	})
}
