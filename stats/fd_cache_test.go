package stats_test

import (
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sublet-dev/agent/stats"
)

// Files are kept open between readings. A cgroup that was removed and recreated is opened
// again, and the values of a removed one are unknown.
func TestFDCache_RecreatedCgroup(t *testing.T) {
	const group = "/lab/statskeeptest"
	hierarchies := []string{"memory", "cpuacct", "pids"}
	if _, err := os.Stat("/sys/fs/cgroup/memory/memory.stat"); err != nil || os.Getuid() != 0 {
		t.Skip("needs root and cgroup v1")
	}
	all := func(do func(string) error) {
		for _, h := range hierarchies {
			require.NoError(t, do("/sys/fs/cgroup/"+h+group))
		}
	}
	mkdir := func(dir string) error { return os.MkdirAll(dir, 0o755) }
	t.Cleanup(func() {
		for _, h := range hierarchies {
			_ = os.Remove("/sys/fs/cgroup/" + h + group)
		}
	})
	p, err := stats.New(stats.Config{Pods: func() []stats.Pod { return []stats.Pod{{Pod: pod("a"), Cgroup: group}} }})
	require.NoError(t, err)
	known := func() bool {
		u, err := p.Usage(t.Context(), time.Time{})
		require.NoError(t, err)
		return !u.Pods[0].Memory.At.IsZero() && !u.Pods[0].Pids.At.IsZero() && !u.Pods[0].CPU.At.IsZero()
	}
	for range 3 {
		all(mkdir)
		for range 4 {
			assert.True(t, known())
		}
		all(os.Remove)
		assert.False(t, known())
	}
}
