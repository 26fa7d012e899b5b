package syncloop

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestLoopConfigFaults(t *testing.T) {
	_, err := New(Config{Housekeeping: -1, AtRest: -1, CheckPeriod: -1, Patience: -1})
	for _, what := range []string{"nil Changes", "nil Handler", "negative Housekeeping", "negative AtRest", "negative CheckPeriod", "negative Patience"} {
		assert.ErrorContains(t, err, what)
	}
}
