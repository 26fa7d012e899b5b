package status_test

import (
	"testing"

	"github.com/sublet-dev/agent/internal/hooktest"
	"github.com/sublet-dev/agent/status"
)

// AG-9: joined hooks call all, in order, whichever of them panics.
func TestHooks_JoinCallsAll(t *testing.T) {
	hooktest.RequireJoins(t, "Status", status.Hooks.Join)
}
