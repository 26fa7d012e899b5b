package clocktest_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/sublet-dev/agent/internal/clocktest"
)

func TestBeforeSetBack(t *testing.T) {
	now := time.Now()
	for _, d := range []time.Duration{3 * time.Hour, -3 * time.Hour} {
		then := clocktest.BeforeSetBack(t, now, d)
		assert.Equal(t, now.Round(0).Add(d), then.Round(0), "the wall clock")
		assert.Zero(t, then.Sub(now), "the monotonic clock")
	}
}
