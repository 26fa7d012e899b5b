package stats_test

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
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
		"cgroup":           {"/node", nil, []string{"meminfo", "pids.current", "cpuacct.usage"}},
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

// EV-1: where the cgroup of the node has no limit, or a higher one than the machine has memory, the
// machine bounds it; so does a cgroup above it with a lower limit. That of all pods has no capacity then.
func TestProvider_CgroupWithoutLimit(t *testing.T) {
	for name, tc := range map[string]struct {
		slice, node          string
		capacity, workingSet uint64
	}{
		"no limit":                {"max", "max", 1000 << 10, 500 << 10},
		"more than there is":      {"max", "1024001", 1000 << 10, 500 << 10},
		"its own limit":           {"max", "4096", 4096, 800},
		"its own, which is lower": {"5000", "4096", 4096, 800},
		"one above it":            {"5000", "max", 5000, 2000},
		"a lower one above it":    {"4000", "4096", 4000, 2000},
	} {
		for version := range 2 {
			t.Run(fmt.Sprintf("%s on v%d", name, version+1), func(t *testing.T) {
				tree := map[string]string{"cgroup.controllers": "cpu memory pids\n"}
				memory, pids, limit, current, inactive := "", "", "memory.max", "memory.current", "inactive_file 200\n"
				if version == 0 {
					tree = map[string]string{}
					memory, pids, limit, current, inactive = "memory/", "pids/", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file 200\n"
					for _, l := range []*string{&tc.slice, &tc.node} {
						*l = strings.Replace(*l, "max", "9223372036854771712", 1)
					}
				}
				for group, l := range map[string][2]string{"slice/": {tc.slice, "2200\n"}, "slice/node/": {tc.node, "1000\n"}} {
					tree[memory+group+limit], tree[memory+group+current], tree[memory+group+"memory.stat"] = l[0]+"\n", l[1], inactive
				}
				tree[pids+"slice/node/pids.current"], tree[pids+"slice/node/pids.max"] = "3\n", "max\n"
				p, err := stats.New(stats.Config{NodeCgroup: "/slice/node", PodsCgroup: func() string { return "/slice/node" }, Proc: proc(), Cgroups: files(tree)})
				require.NoError(t, err)
				u, err := p.NodeUsage(t.Context())
				require.NoError(t, err)
				assert.Equal(t, tc.capacity, u.Memory.Capacity)
				assert.Equal(t, tc.workingSet, u.Memory.WorkingSet)
				assert.Equal(t, uint64(800), u.PodsMemory.WorkingSet)
				assert.Equal(t, name == "no limit" || name == "one above it", u.PodsMemory.Capacity == 0)
				assert.Equal(t, uint64(1000), u.Pids.Max, "of the machine")
			})
		}
	}
}

// EV-1: at the root of the hierarchies there are no limits, and on v2 no usage either.
func TestProvider_RootCgroup(t *testing.T) {
	p, err := stats.New(stats.Config{NodeCgroup: "/", Proc: proc(), Cgroups: files(map[string]string{"cgroup.controllers": "memory\n"})})
	require.NoError(t, err)
	u, err := p.NodeUsage(t.Context())
	require.NoError(t, err)
	assert.Equal(t, uint64(1000<<10), u.Memory.Capacity)
}
