package eviction

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sublet-dev/agent/runtime"
)

// EV-10: where the kernel's threshold has to be for the next of ours.
func TestUsageAt(t *testing.T) {
	const mib = 1 << 20
	thresholds, err := ParseThresholds("memory.available<100Mi,pid.available<5", "memory.available<300Mi", "memory.available=1m", "")
	require.NoError(t, err)
	for _, tc := range []struct {
		name                     string
		capacity, usage, working uint64
		want                     uint64
	}{
		{"far away: the soft one is next", 1000, 200, 200, 700},
		{"between them: the hard one is next", 1000, 800, 800, 900},
		{"above both: the way back", 1000, 950, 950, 900},
		{"cache does not count", 1000, 350, 300, 750},
		{"so much cache that usage cannot get there", 1024, 900, 200, 1024 - 16},
	} {
		t.Run(tc.name, func(t *testing.T) {
			at, ok := usageAt(runtime.MemoryUsage{
				At: time.Now(), Capacity: tc.capacity * mib, Usage: tc.usage * mib, WorkingSet: tc.working * mib,
			}, MemoryAvailable, thresholds)
			assert.True(t, ok)
			assert.Equal(t, tc.want*mib, at)
		})
	}
	_, ok := usageAt(runtime.MemoryUsage{At: time.Now(), Capacity: mib}, AllocatableMemoryAvailable, thresholds)
	assert.False(t, ok, "there is no threshold on it")
	_, ok = usageAt(runtime.MemoryUsage{}, MemoryAvailable, thresholds)
	assert.False(t, ok, "nothing is known")
}
