package cgroup

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

// Weights are those of the runtimes that make the containers below: the least,
// the most and the default fall on each other, and more is never less.
func TestWeightsAreTheRuntimes(t *testing.T) {
	for shares, want := range map[uint64]uint64{
		0: 1, 1: 1, 2: 1, 3: 2, 10: 4, 102: 17, 1024: 100, 2048: 174, 4096: 303, 204800: 8064, 262143: 10000, 262144: 10000, 1 << 40: 10000,
	} {
		assert.Equal(t, want, weightOf(shares), "%d shares", shares)
	}
	for shares := uint64(1); shares < maxShares; shares += 7 {
		assert.LessOrEqual(t, weightOf(shares), weightOf(shares+7), "%d shares", shares)
	}
}
