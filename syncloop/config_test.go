package syncloop

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestLoopConfigFaults(t *testing.T) {
	_, err := New(Config{HousekeepingPeriod: -1, IdleHousekeepingPeriod: -1, RuntimeCheckPeriod: -1, RuntimeSyncThreshold: -1})
	for _, what := range []string{"nil Changes", "nil Handler", "negative Housekeeping", "negative AtRest", "negative CheckPeriod", "negative Patience"} {
		assert.ErrorContains(t, err, what)
	}
}
