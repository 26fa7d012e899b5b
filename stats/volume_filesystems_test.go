package stats

import (
	"errors"
	"log/slog"
	"testing"
	"testing/fstest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sublet-dev/agent/internal/logtest"
	"github.com/sublet-dev/agent/runtime"
)

// A volume in memory has the size of its own file system, as in the kubelet, and what is used of it
// is counted as that of other volumes.
func TestProvider_SummaryOfMemoryVolumes(t *testing.T) {
	pod, unmounted := podOf(t, "a"), podOf(t, "b")
	unmounted.Volumes["mem"] = Volume{Path: "/unmounted", Uncounted: true}
	node := runtime.FSUsage{At: time.Now(), CapacityBytes: 1 << 30, AvailableBytes: 600 << 20, UsedBytes: 424 << 20, Inodes: 100, InodesUsed: 10}
	tmpfs := runtime.FSUsage{At: time.Now(), CapacityBytes: 64 << 20, AvailableBytes: 60 << 20, UsedBytes: 4 << 20, Inodes: 9, InodesUsed: 2}
	var log logtest.Buffer
	p, err := New(Config{
		Proc: testProc(), Cgroups: fstest.MapFS{}, NodeFS: "/node", Pods: func() []Pod { return []Pod{pod, unmounted} },
		Statfs: func(path string) (runtime.FSUsage, error) {
			switch path {
			case "/node":
				return node, nil
			case pod.Volumes["mem"].Path:
				return tmpfs, nil
			}
			return runtime.FSUsage{}, errors.New("statfs " + path + ": no such directory")
		},
		Logger: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug})),
	})
	require.NoError(t, err)
	s, err := p.Summary(t.Context(), "edge-1", nil)
	require.NoError(t, err)
	require.Len(t, s.Pods, 2)
	for i, uid := range []string{"a", "b"} {
		volumes := s.Pods[i].VolumeStats
		require.Len(t, volumes, 2)
		mem, vol := volumes[0], volumes[1]
		require.Equal(t, []string{"mem", "vol"}, []string{mem.Name, vol.Name})
		assert.Equal(t, []uint64{1 << 30, 600 << 20, 100, 90}, []uint64{*vol.CapacityBytes, *vol.AvailableBytes, *vol.Inodes, *vol.InodesFree})
		if uid == "b" {
			assert.NotNil(t, mem.UsedBytes)
			assert.Nil(t, mem.CapacityBytes, "not that of the node's file system")
			continue
		}
		assert.Equal(t, []uint64{64 << 20, 60 << 20, 9, 7}, []uint64{*mem.CapacityBytes, *mem.AvailableBytes, *mem.Inodes, *mem.InodesFree})
		counted := p.disks["a"].volumes["mem"]
		bytesIn(t, counted.DiskUsage, 20_000)
		assert.Equal(t, []uint64{counted.Bytes, counted.Inodes}, []uint64{*mem.UsedBytes, *mem.InodesUsed})
		assert.True(t, mem.Time.Time.Equal(counted.At))
	}
	assert.Contains(t, log.String(), "statfs /unmounted: no such directory")
}
