package stats

import (
	"context"
	"errors"
	"testing"
	"testing/fstest"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sublet-dev/agent/runtime"
)

// imageUseFunc reports file systems.
type imageUseFunc func(context.Context) (images, containers []runtime.FSUsage, err error)

func (f imageUseFunc) ImageFS(ctx context.Context) (images, containers []runtime.FSUsage, err error) {
	return f(ctx)
}

// The usage of the runtime's file systems is that of its images and layers, whatever else is on
// them. What the runtime does not say is left out.
func TestProvider_SummaryOfImages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		at, calls := time.Now(), 0
		images := []runtime.FSUsage{{At: at, Mountpoint: "/images", UsedBytes: 7, InodesUsed: 3}}
		var layers []runtime.FSUsage
		var err error
		p, newErr := New(Config{
			Proc: testProc(), Cgroups: fstest.MapFS{}, NodeFS: "/node",
			ImageFS: imageUseFunc(func(context.Context) (_, _ []runtime.FSUsage, _ error) {
				calls++
				return images, layers, err
			}),
			Statfs: func(path string) (runtime.FSUsage, error) {
				return runtime.FSUsage{At: time.Now(), Mountpoint: path, CapacityBytes: 100, UsedBytes: 60, AvailableBytes: 40, Inodes: 50, InodesUsed: 30}, nil
			},
		})
		require.NoError(t, newErr)
		summary := func() Summary {
			t.Helper()
			s, err := p.Summary(t.Context(), "edge-1", nil)
			require.NoError(t, err)
			time.Sleep(summaryAge)
			return s
		}
		s := summary()
		assert.Equal(t, uint64(60), *s.Node.FS.UsedBytes)
		for _, fs := range []*FSStats{s.Node.Runtime.ImageFS, s.Node.Runtime.ContainerFS} {
			assert.Equal(t, []uint64{7, 3, 100, 40, 20}, []uint64{*fs.UsedBytes, *fs.InodesUsed, *fs.CapacityBytes, *fs.AvailableBytes, *fs.InodesFree})
		}

		layers = []runtime.FSUsage{{At: at, Mountpoint: "/layers", UsedBytes: 9}}
		s = summary()
		assert.Equal(t, uint64(7), *s.Node.Runtime.ImageFS.UsedBytes)
		assert.Equal(t, uint64(9), *s.Node.Runtime.ContainerFS.UsedBytes)
		assert.Nil(t, s.Node.Runtime.ContainerFS.InodesUsed, "not reported")

		before := calls
		_, summaryErr := p.Summary(t.Context(), "edge-1", nil)
		require.NoError(t, summaryErr)
		_, summaryErr = p.Summary(t.Context(), "edge-1", nil)
		require.NoError(t, summaryErr)
		assert.Equal(t, before+1, calls, "the runtime is not asked each time")

		time.Sleep(summaryAge)
		err, before = errors.New("runtime is down"), calls
		s = summary()
		assert.Equal(t, uint64(7), *s.Node.Runtime.ImageFS.UsedBytes, "the last that is known")
		assert.Equal(t, uint64(40), *s.Node.Runtime.ImageFS.AvailableBytes)
		assert.Equal(t, before+1, calls)
		err, images, layers = nil, []runtime.FSUsage{{Mountpoint: "/images"}}, nil
		assert.Nil(t, summary().Node.Runtime.ImageFS.UsedBytes, "not measured")
	})
}
