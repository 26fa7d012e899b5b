package agent

import (
	"testing"

	"github.com/sublet-dev/agent/internal/hooktest"
)

// AG-9: no hook of a component is forgotten: each calls all observers, in order,
// whichever of them panics.
func TestHooks_JoinCallsAllObservers(t *testing.T) {
	hooktest.RequireJoins(t, "", Hooks.join)
}
