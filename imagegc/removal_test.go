package imagegc_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sublet-dev/agent/imagegc"
	"github.com/sublet-dev/agent/runtime"
)

// relisted is a store whose list changes right before an image is removed: its second
// list is what change makes of it.
type relisted struct {
	*store

	lists  int
	change func([]runtime.Image) []runtime.Image
}

func (r *relisted) Images(ctx context.Context) ([]runtime.Image, error) {
	images, err := r.store.Images(ctx)
	if r.lists++; r.lists == 2 {
		images = r.change(images)
	}
	return images, err
}

// IG-1: an image is looked up once more, under all of its names, right before it is
// removed.
func TestCollector_ChecksImageBeforeRemoval(t *testing.T) {
	var c *imagegc.Collector
	for name, tt := range map[string]struct {
		change func([]runtime.Image) []runtime.Image
		calls  int // of RemoveImage
		result int // removed images in the result
	}{
		"nothing has changed":           {func(list []runtime.Image) []runtime.Image { return list }, 1, 1},
		"another client has removed it": {func([]runtime.Image) []runtime.Image { return nil }, 0, 1},
		"it has lost its name, as during a pull": {func(list []runtime.Image) []runtime.Image {
			list[0].Tags = nil
			return list
		}, 0, 0},
		"it has been pinned": {func(list []runtime.Image) []runtime.Image {
			list[0].Pinned = true
			return list
		}, 0, 0},
		"a pod has a lease on a name that is listed separately": {func(list []runtime.Image) []runtime.Image {
			_ = c.Lease(context.Background(), "p", []string{"reg.io/other:1"})
			return append(list, runtime.Image{ID: list[0].ID, Tags: []string{"reg.io/other:1"}})
		}, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newStore(1000)
				s.pull("a", 100)
				c = collector(t, imagegc.Config{Images: &relisted{store: s, change: tt.change}, Policy: imagegc.Policy{MinAge: -1}})
				result, err := c.DeleteUnused(t.Context())
				require.NoError(t, err)
				assert.Len(t, s.removed, tt.calls)
				assert.Len(t, result.Removed, tt.result)
			})
		})
	}
}

// The hook gets each removal, its reason and its duration, successful or not.
func TestCollector_ReportsRemovals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		type removal struct {
			id       string
			reason   imagegc.Reason
			duration time.Duration
			err      error
		}
		var got []removal
		s := newStore(1000)
		s.unpacked = 50
		boom := errors.New("boom")
		c := collector(t, imagegc.Config{Images: s, Hooks: imagegc.Hooks{
			Removed: func(image runtime.Image, reason imagegc.Reason, duration time.Duration, err error) {
				if err != nil {
					require.ErrorIs(t, err, boom)
					err = boom
				}
				got = append(got, removal{image.ID, reason, duration, err})
			},
		}})
		var ids []string
		for _, name := range []string{"a", "b"} {
			ids = append(ids, s.pull(name, 250))
			_, _ = c.Collect(t.Context())
			time.Sleep(time.Hour)
		}
		s.pull("c", 250)
		s.slow = time.Second
		s.fail[ids[0]] = boom
		result, err := c.Collect(t.Context())
		require.ErrorIs(t, err, boom)
		assert.Equal(t, []removal{{ids[0], imagegc.ReasonDiskUsage, time.Second, boom}, {ids[1], imagegc.ReasonDiskUsage, time.Second, nil}}, got)
		require.Len(t, result.Removed, 1)
		assert.True(t, result.Removed[0].Remove)
		assert.Equal(t, imagegc.ReasonDiskUsage, result.Removed[0].Reason, "also of an image beyond the estimate")

		got = nil
		time.Sleep(time.Hour)
		_, err = c.DeleteUnused(t.Context())
		require.ErrorIs(t, err, boom)
		require.Len(t, got, 2)
		assert.Equal(t, imagegc.ReasonUnused, got[1].reason)
	})
}

// An image that was removed and pulled again is as young as a new one.
func TestCollector_ForgetsRemovedImages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(1000)
		s.pull("a", 100)
		c := collector(t, imagegc.Config{Images: s})
		_, err := c.Collect(t.Context())
		require.NoError(t, err)
		time.Sleep(time.Hour)
		_, err = c.DeleteUnused(t.Context())
		require.NoError(t, err)
		require.Empty(t, s.ids())
		s.pull("a", 100)
		_, err = c.DeleteUnused(t.Context())
		require.NoError(t, err)
		require.Len(t, s.ids(), 1)
	})
}

// IG-4: too little space is an error of a collection that has to free it, not of one that
// removes all unused images.
func TestCollector_DeleteUnusedNeedNotFreeEnough(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(1000)
		s.pull("a", 950)
		s.run("reg.io/a:1")
		c := collector(t, imagegc.Config{Images: s})
		_, err := c.Collect(t.Context())
		require.ErrorAs(t, err, new(*imagegc.InsufficientSpaceError))
		_, err = c.DeleteUnused(t.Context())
		require.NoError(t, err)
	})
}

// A collection that waits for the file system ends with its context.
func TestCollector_StopsWhileDiskSettles(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(1000)
		s.pull("a", 100)
		lag := &lagging{store: s}
		c := collector(t, imagegc.Config{
			Images: lag, Policy: imagegc.Policy{MinAge: -1}, DiskSettleTime: time.Hour,
			Statfs: func(string) (runtime.FSUsage, error) {
				return runtime.FSUsage{CapacityBytes: 1000, AvailableBytes: 500}, nil
			},
		})
		stop := errors.New("stop")
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(time.Minute, func() { cancel(stop) })
		startTime := time.Now()
		result, err := c.DeleteUnused(ctx)
		require.ErrorIs(t, err, stop)
		assert.Len(t, result.Removed, 1)
		assert.Zero(t, result.BytesFreed)
		assert.Equal(t, time.Minute, time.Since(startTime))
	})
}

// A file system that the runtime does not measure is measured by the system.
func TestCollector_MeasuresWithStatfsByDefault(t *testing.T) {
	c := collector(t, imagegc.Config{Images: &lagging{store: newStore(1000)}})
	_, err := c.Collect(t.Context())
	require.ErrorContains(t, err, "measure image file system at /images: statfs /images: ")
}

// IG-3: an image was last used when a container or a lease was last seen to need it.
func TestCollector_RecordsLastUse(t *testing.T) {
	for name, tt := range map[string]struct {
		use  func(*testing.T, *store, *imagegc.Collector)
		end  func(*store, *imagegc.Collector)
		want time.Duration // age of the last use, in the end
	}{
		"never used":          {func(*testing.T, *store, *imagegc.Collector) {}, func(*store, *imagegc.Collector) {}, 3 * time.Hour},
		"a container uses it": {func(_ *testing.T, s *store, _ *imagegc.Collector) { s.run("reg.io/a:1") }, func(*store, *imagegc.Collector) {}, 0},
		"a container used it": {func(_ *testing.T, s *store, _ *imagegc.Collector) { s.run("reg.io/a:1") }, func(s *store, _ *imagegc.Collector) { s.inUse = nil }, 2 * time.Hour},
		"a pod has a lease":   {lease, func(*store, *imagegc.Collector) {}, 0},
		"the lease has ended": {lease, func(_ *store, c *imagegc.Collector) { c.Release("p") }, time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newStore(1000)
				s.pull("a", 100)
				c := collector(t, imagegc.Config{Images: s})
				step := func() {
					_, err := c.Collect(t.Context())
					require.NoError(t, err)
					time.Sleep(time.Hour)
				}
				step()
				tt.use(t, s, c)
				step()
				tt.end(s, c)
				step()
				decisions, err := c.Explain(t.Context(), true)
				require.NoError(t, err)
				assert.Equal(t, tt.want, time.Since(decisions[0].Record.LastUsed))
			})
		})
	}
}

func lease(t *testing.T, _ *store, c *imagegc.Collector) {
	t.Helper()
	require.NoError(t, c.Lease(t.Context(), "p", []string{"reg.io/a:1"}))
}

// IG-3: a Run that is stopped before its first collection does not overwrite the records.
func TestCollector_KeepsUnreadRecords(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(1000)
		s.pull("a", 100)
		file := filepath.Join(t.TempDir(), "records")
		_, err := collector(t, imagegc.Config{Images: s, RecordsFile: file}).Collect(t.Context())
		require.NoError(t, err)
		want, err := os.ReadFile(file)
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		for range 40 { // whether it still collects is left to chance
			require.NoError(t, collector(t, imagegc.Config{Images: s, RecordsFile: file}).Run(ctx))
			got, err := os.ReadFile(file)
			require.NoError(t, err)
			require.Equal(t, string(want), string(got))
		}
	})
}
