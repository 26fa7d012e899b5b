package imagegc_test

import (
	"testing"

	"github.com/sublet-dev/agent/imagegc"
	"github.com/sublet-dev/agent/internal/hooktest"
)

// AG-9: joined hooks call all, in order, whichever of them panics.
func TestHooks_JoinCallsAll(t *testing.T) {
	hooktest.RequireJoins(t, "ImageGC", imagegc.Hooks.Join)
}
