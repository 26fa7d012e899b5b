package eviction

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sublet-dev/agent/runtime"
)

// EV-10: how long nothing can have been crossed that is not crossed yet.
func TestPace(t *testing.T) {
	const gib, most = 1 << 30, 10 * time.Second
	now := time.Now()
	memory := func(used uint64) runtime.MemoryUsage {
		return runtime.MemoryUsage{At: now, Capacity: 100 * gib, Usage: used, WorkingSet: used}
	}
	disk := func(left, inodes uint64) runtime.FSUsage {
		return runtime.FSUsage{At: now, CapacityBytes: 100 * gib, AvailableBytes: left, Inodes: 10_000_000, InodesUsed: 10_000_000 - inodes}
	}
	for _, tc := range []struct {
		name, hard string
		u          runtime.NodeUsage
		kernel     map[Signal]bool
		want       time.Duration
	}{
		{"nothing to look out for", "none", runtime.NodeUsage{Memory: memory(0)}, nil, most},
		{"far away", "memory.available<1Gi", runtime.NodeUsage{Memory: memory(0)}, nil, most},
		{"8 GiB take 2 s", "memory.available<2Gi", runtime.NodeUsage{Memory: memory(90 * gib)}, nil, 2 * time.Second},
		{"near", "memory.available<2Gi", runtime.NodeUsage{Memory: memory(98*gib - 1)}, nil, minPollInterval},
		{"at it", "memory.available<2Gi", runtime.NodeUsage{Memory: memory(98 * gib)}, nil, minPollInterval},
		{"crossed: there is nothing to wait for", "memory.available<2Gi", runtime.NodeUsage{Memory: memory(99 * gib)}, nil, most},
		{"near, and the kernel tells", "memory.available<2Gi", runtime.NodeUsage{Memory: memory(97 * gib)}, map[Signal]bool{MemoryAvailable: true}, most},
		{"the kernel tells of another", "memory.available<2Gi", runtime.NodeUsage{Memory: memory(94 * gib)}, map[Signal]bool{AllocatableMemoryAvailable: true}, time.Second},
		{"not known", "nodefs.available<1Gi", runtime.NodeUsage{Memory: memory(97 * gib)}, nil, most},
		{"disk", "nodefs.available<10%", runtime.NodeUsage{NodeFS: disk(14*gib, 0)}, nil, time.Second},
		{"inodes", "imagefs.inodesFree<1000000", runtime.NodeUsage{ImageFS: disk(0, 1_600_000)}, nil, 3 * time.Second},
		{"processes", "pid.available<1000", runtime.NodeUsage{Pids: runtime.PidUsage{At: now, Max: 32768, Used: 1768}}, nil, 1500 * time.Millisecond},
		{"the nearest counts", "memory.available<2Gi,nodefs.available<10%", runtime.NodeUsage{Memory: memory(90 * gib), NodeFS: disk(14*gib, 0)}, nil, time.Second},
		{"pressure is averaged", "memory.psi.some.avg10>20%", runtime.NodeUsage{}, nil, psiWindow},
	} {
		t.Run(tc.name, func(t *testing.T) {
			thresholds, err := ParseThresholds(tc.hard, "", "", "")
			require.NoError(t, err)
			assert.Equal(t, tc.want, nextPoll(&tc.u, thresholds, tc.kernel, most))
		})
	}
	assert.Equal(t, 10*time.Millisecond, nextPoll(&runtime.NodeUsage{}, nil, nil, 10*time.Millisecond), "never slower than asked")
}
