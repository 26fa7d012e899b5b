package stats_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sublet-dev/agent/stats"
)

func TestProvider_BootTime(t *testing.T) {
	for name, tc := range map[string]struct {
		stat string
		want time.Time
	}{
		"reported":     {"cpu  1 2 3\nctxt 9\nbtime 1700000000\nprocesses 5\n", time.Unix(1700000000, 0)},
		"not reported": {"cpu  1 2 3\n", time.Time{}},
		"absurd":       {"btime 99999999999999999\n", time.Time{}},
		"many CPUs":    {strings.Repeat("cpu7 1 2 3 4 5 6 7 8 9 10\n", 10_000) + "intr " + strings.Repeat("0 ", 50_000) + "\nbtime 1700000000\n", time.Unix(1700000000, 0)},
	} {
		p, err := stats.New(stats.Config{Proc: files(map[string]string{"stat": tc.stat}), Cgroups: files(nil)})
		require.NoError(t, err)
		assert.Equal(t, tc.want, p.BootTime(), name)
	}
}

// Run starts before there are pods: the first one is counted soon after it was added.
func TestRun_CountsTheFirstPodSoon(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "file"), make([]byte, 1<<20), 0o600))
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var pods []stats.Pod
		p, err := stats.New(stats.Config{Proc: proc(), Cgroups: files(nil), Pods: func() []stats.Pod {
			mu.Lock()
			defer mu.Unlock()
			return pods
		}})
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- p.Run(ctx) }()
		time.Sleep(time.Hour + time.Second)
		mu.Lock()
		pods = []stats.Pod{{Pod: pod("u"), TrackDiskUsage: true, Volumes: map[string]stats.Volume{"v": {Path: dir}}}}
		mu.Unlock()
		time.Sleep(10 * time.Second)
		u, err := p.Usage(ctx, time.Time{})
		require.NoError(t, err)
		assert.GreaterOrEqual(t, u.Pods[0].Volumes["v"].Bytes, uint64(1<<20))
		cancel()
		require.NoError(t, <-done)
	})
}

// The cgroup of all pods may be known only after the runtime has reported its driver.
func TestProvider_FindsTheCgroupOfAllPodsLater(t *testing.T) {
	name := ""
	p, err := stats.New(stats.Config{PodsCgroup: func() string { return name }, Proc: proc(), Cgroups: files(map[string]string{
		"memory/kubepods.slice/memory.usage_in_bytes": "1000\n", "memory/kubepods.slice/memory.limit_in_bytes": "4096\n",
		"memory/kubepods.slice/memory.stat": "total_inactive_file 200\n",
	})})
	require.NoError(t, err)
	u, err := p.Usage(t.Context(), time.Time{})
	require.NoError(t, err)
	assert.True(t, u.PodsMemory.At.IsZero())
	name = "/kubepods.slice"
	u, err = p.Usage(t.Context(), time.Time{})
	require.NoError(t, err)
	assert.Equal(t, uint64(4096), u.PodsMemory.Capacity)
	assert.Equal(t, uint64(800), u.PodsMemory.WorkingSet)
}
