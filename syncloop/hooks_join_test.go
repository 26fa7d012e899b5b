package syncloop_test

import (
	"testing"

	"github.com/sublet-dev/agent/internal/hooktest"
	"github.com/sublet-dev/agent/syncloop"
)

// AG-9: joined hooks call all, in order, whichever of them panics.
func TestHooks_JoinCallsAll(t *testing.T) {
	hooktest.RequireJoins(t, "SyncLoop", syncloop.Hooks.Join)
	hooktest.RequireJoins(t, "PodManager", syncloop.PodManagerHooks.Join)
	hooktest.RequireJoins(t, "Housekeeper", syncloop.HousekeeperHooks.Join)
}
