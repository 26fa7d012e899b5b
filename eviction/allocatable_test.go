package eviction

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// EV-1: a hard threshold on the memory of the node also holds for that of all pods.
func TestThresholdsOf(t *testing.T) {
	parse := func(hard, soft, reclaim string) []Threshold {
		list, err := ParseThresholds(hard, soft, "memory.available=1m,allocatableMemory.available=1m", reclaim)
		require.NoError(t, err)
		return list
	}
	const all = ",allocatableMemory.available"
	for name, tc := range map[string]struct{ configured, want []Threshold }{
		"default":           {nil, parse(DefaultHardThresholds+all+"<100Mi", "", "")},
		"none":              {[]Threshold{}, []Threshold{}},
		"percentage":        {parse("memory.available<5%", "", ""), parse("memory.available<5%"+all+"<5%", "", "")},
		"minimum reclaim":   {parse("memory.available<5%", "", "memory.available=1Gi"), parse("memory.available<5%"+all+"<5%", "", "memory.available=1Gi"+all+"=1Gi")},
		"one of its own":    {parse("memory.available<5%"+all+"<1Gi", "", ""), parse("memory.available<5%"+all+"<1Gi", "", "")},
		"a soft one of its": {parse("memory.available<5%", "allocatableMemory.available<1Gi", ""), parse("memory.available<5%", "allocatableMemory.available<1Gi", "")},
		"soft":              {parse("", "memory.available<5%", ""), parse("", "memory.available<5%", "")},
		"disk":              {parse("nodefs.available<5%", "", ""), parse("nodefs.available<5%", "", "")},
	} {
		before := append([]Threshold{}, tc.configured...)
		assert.Equal(t, tc.want, thresholdsOf(tc.configured), name)
		assert.Equal(t, before, append([]Threshold{}, tc.configured...), name)
	}
}
