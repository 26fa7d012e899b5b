package imagegc_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sublet-dev/agent/imagegc"
	"github.com/sublet-dev/agent/runtime"
)

// A runtime that tells no size of its file system, and one that takes a moment to
// let go of an image.
func TestCollector_MeasuresWithStatfs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(1000)
		lag := &lagging{store: s}
		c := collector(t, imagegc.Config{Images: lag, Statfs: func(path string) (runtime.FSUsage, error) {
			assert.Equal(t, "/images", path)
			return runtime.FSUsage{CapacityBytes: 1000, AvailableBytes: lag.available()}, nil
		}})
		for i := range 8 {
			s.pull(fmt.Sprint("app", i), 100)
			_, err := c.Collect(t.Context())
			require.NoError(t, err)
			time.Sleep(time.Minute)
		}
		s.pull("big", 100)
		result, err := c.Collect(t.Context())
		require.NoError(t, err)
		assert.Len(t, result.Removed, 1, "it waits for the first before it takes a second")
		assert.Equal(t, uint64(100), result.BytesFreed)

		lag.none = true
		_, err = c.Collect(t.Context())
		require.ErrorContains(t, err, "runtime reports none")
	})
}

// lagging frees what was removed 300 ms later.
type lagging struct {
	*store

	none bool
	last uint64
	at   time.Time
}

func (l *lagging) ImageFS(context.Context) (images, containers []runtime.FSUsage, err error) {
	if l.none {
		return nil, nil, nil
	}
	return []runtime.FSUsage{{Mountpoint: "/images", UsedBytes: 1}}, nil, nil
}

func (l *lagging) available() uint64 {
	now := 1000 - l.used()
	switch {
	case now <= l.last || l.last == 0:
		l.last, l.at = now, time.Time{}
	case l.at.IsZero():
		l.at = time.Now()
	case time.Since(l.at) >= 300*time.Millisecond:
		l.last, l.at = now, time.Time{}
	}
	return l.last
}

// unmeasured cannot be measured after an image was removed, until measurement `recovery`.
type unmeasured struct {
	*store

	measurements, recovery int
}

func (u *unmeasured) ImageFS(ctx context.Context) (images, containers []runtime.FSUsage, err error) {
	u.measurements++
	if len(u.removed) > 0 && (u.recovery == 0 || u.measurements < u.recovery) {
		return nil, nil, runtime.ErrUnavailable
	}
	return u.store.ImageFS(ctx)
}

// IG-4: where the file system cannot be measured after a removal, sizes count in its place: no
// more images are removed than are needed by them.
func TestCollector_StopsAtSizesWithoutMeasurements(t *testing.T) {
	for name, tt := range map[string]struct{ recovery, removed int }{
		"never measured again":          {0, 2},
		"measured again by the second":  {3, 3},
		"measured again after the last": {5, 2},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newStore(1000)
				for i := range 9 { // each is 100 by its size, and frees 70, because 30 are shared
					s.pull(fmt.Sprint("app", i), 70, "base")
				}
				s.layers["base"], s.capacity = 30, 710
				u := &unmeasured{store: s}
				c := collector(t, imagegc.Config{Images: u, Policy: imagegc.Policy{MinAge: -1, HighThresholdPercent: 80, LowThresholdPercent: 70}})
				u.recovery = tt.recovery
				result, err := c.Collect(t.Context())
				require.ErrorIs(t, err, runtime.ErrUnavailable)
				assert.Len(t, s.removed, tt.removed)
				assert.Len(t, result.Removed, tt.removed)
			})
		})
	}
}

// IG-1: without the image of its sandboxes no pod starts, and no container tells
// that it is in use.
func TestCollector_KeepsSandboxImage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(1000)
		pause, other := s.pull("pause", 10), s.pull("other", 10)
		ref, failed := "reg.io/pause:1", error(nil)
		c := collector(t, imagegc.Config{Images: s, Policy: imagegc.Policy{MinAge: -1}, SandboxImage: func(context.Context) (string, error) {
			return ref, failed
		}})
		failed = runtime.ErrUnavailable
		_, err := c.DeleteUnused(t.Context())
		require.ErrorIs(t, err, runtime.ErrUnavailable)
		assert.Empty(t, s.removed, "nothing goes while that is not known")
		failed = nil
		_, err = c.DeleteUnused(t.Context())
		require.NoError(t, err)
		assert.Equal(t, []string{other}, s.removed)
		assert.Equal(t, []string{pause}, s.ids())
	})
}
