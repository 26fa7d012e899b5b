package syncloop

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestNew_ReportsAllErrors(t *testing.T) {
	_, err := New(Config{HousekeepingPeriod: -1, IdleHousekeepingPeriod: -1, RuntimeCheckPeriod: -1, RuntimeSyncThreshold: -1})
	for _, what := range []string{"Config.Changes", "Config.Handler", "Config.HousekeepingPeriod", "Config.IdleHousekeepingPeriod", "Config.RuntimeCheckPeriod", "Config.RuntimeSyncThreshold"} {
		assert.ErrorContains(t, err, what)
	}
}
