package pleg_test

import (
	"testing"

	"github.com/sublet-dev/agent/internal/hooktest"
	"github.com/sublet-dev/agent/pleg"
)

// AG-9: joined hooks call all, in order, whichever of them panics.
func TestHooks_JoinCallsAll(t *testing.T) {
	hooktest.RequireJoins(t, "PLEG", pleg.Hooks.Join)
}
