package containergc_test

import (
	"testing"

	"github.com/sublet-dev/agent/containergc"
	"github.com/sublet-dev/agent/internal/hooktest"
)

// AG-9: joined hooks call all, in order, whichever of them panics.
func TestHooks_JoinCallsAll(t *testing.T) {
	hooktest.RequireJoins(t, "ContainerGC", containergc.Hooks.Join)
}
