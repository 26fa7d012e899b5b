package runtime_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/sublet-dev/agent/runtime"
)

func TestResult_PrintsItsName(t *testing.T) {
	assert.Equal(t, "{ProbeSuccess ProbeUnknown ProbeFailure}", fmt.Sprint(runtime.ProbeResults{Startup: runtime.ProbeSuccess, Liveness: runtime.ProbeFailure}))
}
