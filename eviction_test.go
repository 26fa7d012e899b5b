package agent

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sublet-dev/agent/eviction"
)

// EV-1: what bounds the node's memory bounds that of all pods.
func TestThresholdOfAllPods(t *testing.T) {
	for _, tc := range []struct{ hard, reclaim, wantHard, wantReclaim string }{
		{"", "", eviction.DefaultHardThresholds + ",allocatableMemory.available<100Mi", ""},
		{"memory.available<5%", "memory.available=1Gi", "memory.available<5%,allocatableMemory.available<5%", "memory.available=1Gi,allocatableMemory.available=1Gi"},
		{"memory.available<5%,allocatableMemory.available<1Gi", "", "memory.available<5%,allocatableMemory.available<1Gi", ""},
		{"memory.available<0%", "", "memory.available<0%", ""},
		{"nodefs.available<5%", "", "nodefs.available<5%", ""},
		{eviction.None, "", eviction.None, ""},
	} {
		hard, reclaim := allocatableThresholds(tc.hard, tc.reclaim)
		assert.Equal(t, tc.wantHard, hard)
		assert.Equal(t, tc.wantReclaim, reclaim)
		_, err := eviction.ParseThresholds(hard, "", "", reclaim)
		require.NoError(t, err)
	}
}
