package eviction_test

import (
	"testing"

	"github.com/sublet-dev/agent/eviction"
	"github.com/sublet-dev/agent/internal/hooktest"
)

// AG-9: joined hooks call all, in order, whichever of them panics.
func TestHooks_JoinCallsAll(t *testing.T) {
	hooktest.RequireJoins(t, "Eviction", eviction.Hooks.Join)
}
