package runtime_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/sublet-dev/agent/runtime"
)

func TestResult_PrintsItsName(t *testing.T) {
	assert.Equal(t, "{Success Unproven Failed}", fmt.Sprint(runtime.Verdict{Started: runtime.Success, Live: runtime.Failed}))
}
