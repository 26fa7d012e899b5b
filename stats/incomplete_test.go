package stats_test

import (
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sublet-dev/agent/internal/logtest"
	"github.com/sublet-dev/agent/runtime"
	"github.com/sublet-dev/agent/stats"
)

// EV-11: what cannot be measured is left out and logged with its reason; only if nothing can
// be measured there is an error.
func TestProvider_IncompleteMeasurement(t *testing.T) {
	for name, tc := range map[string]struct {
		cgroup string
		proc   map[string]string
		want   []string
	}{
		"machine":          {"", nil, []string{"meminfo", "pid_max", "cpuacct.usage"}},
		"cgroup":           {"/node", nil, []string{"memory.usage_in_bytes", "pids.current", "cpuacct.usage"}},
		"no total":         {"", map[string]string{"meminfo": "MemFree: 1 kB\n"}, []string{"meminfo has no MemTotal"}},
		"short loadavg":    {"", map[string]string{"sys/kernel/pid_max": "10\n", "loadavg": "0 0 0\n"}, []string{"has too few fields"}},
		"loadavg of words": {"", map[string]string{"sys/kernel/pid_max": "10\n", "loadavg": "0 0 0 a/b 1\n"}, []string{"invalid syntax"}},
	} {
		t.Run(name, func(t *testing.T) {
			var log logtest.Buffer
			fsErr := error(nil)
			p, err := stats.New(stats.Config{
				Proc: files(tc.proc), Cgroups: files(nil), NodeCgroup: tc.cgroup, NodeFS: "/node",
				PodsCgroup: func() string { return "/kubepods" },
				Logger:     slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug})),
				Statfs: func(string) (runtime.FSUsage, error) {
					return runtime.FSUsage{At: time.Now(), Mountpoint: "/node", CapacityBytes: 5}, fsErr
				},
			})
			require.NoError(t, err)
			u, err := p.NodeUsage(t.Context())
			require.NoError(t, err)
			assert.True(t, u.Memory.At.IsZero())
			assert.True(t, u.Pids.At.IsZero())
			assert.True(t, u.CPU.At.IsZero())
			assert.True(t, u.PodsMemory.At.IsZero())
			assert.Equal(t, uint64(5), u.NodeFS.CapacityBytes)
			assert.Equal(t, u.NodeFS, u.ImageFS, "images are on the node's file system")
			assert.Equal(t, u.NodeFS, u.ContainerFS)
			for _, want := range append(tc.want, "kubepods/memory.usage_in_bytes") {
				assert.Contains(t, log.String(), want)
			}
			fsErr = errors.New("no such disk")
			_, err = p.NodeUsage(t.Context())
			require.ErrorContains(t, err, "measure node: ")
			require.ErrorContains(t, err, "no such disk")
		})
	}
}

// EV-1: a cgroup without a limit has no capacity, and its processes are bounded by the machine.
func TestProvider_CgroupWithoutLimit(t *testing.T) {
	p, err := stats.New(stats.Config{NodeCgroup: "/node", PodsCgroup: func() string { return "/node" }, Proc: proc(), Cgroups: files(map[string]string{
		"memory/node/memory.usage_in_bytes": "1000\n", "memory/node/memory.limit_in_bytes": "9223372036854771712\n", "memory/node/memory.stat": "total_inactive_file 200\n",
		"pids/node/pids.current": "3\n", "pids/node/pids.max": "max\n",
	})})
	require.NoError(t, err)
	u, err := p.NodeUsage(t.Context())
	require.NoError(t, err)
	assert.Zero(t, u.Memory.Capacity)
	assert.Zero(t, u.PodsMemory.Capacity)
	assert.Equal(t, uint64(800), u.Memory.WorkingSet)
	assert.NotZero(t, u.Pids.Max, "of the machine")
}
