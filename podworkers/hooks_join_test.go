package podworkers_test

import (
	"testing"

	"github.com/sublet-dev/agent/internal/hooktest"
	"github.com/sublet-dev/agent/podworkers"
)

// AG-9: joined hooks call all, in order, whichever of them panics.
func TestHooks_JoinCallsAll(t *testing.T) {
	hooktest.RequireJoins(t, "PodWorkers", podworkers.Hooks.Join)
}
