package cgroup

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

// The weights are those of runc and crun: minimum, maximum and default of shares are those
// of weights, and more shares never give a lower weight.
func TestWeightOf_IsThatOfTheRuntimes(t *testing.T) {
	for shares, want := range map[uint64]uint64{
		0: 1, 1: 1, 2: 1, 3: 2, 10: 4, 102: 17, 1024: 100, 2048: 174, 4096: 303, 204800: 8064, 262143: 10000, 262144: 10000, 1 << 40: 10000,
	} {
		assert.Equal(t, want, weightOf(shares), "%d shares", shares)
	}
	for shares := uint64(1); shares < maxShares; shares += 7 {
		assert.LessOrEqual(t, weightOf(shares), weightOf(shares+7), "%d shares", shares)
	}
}
