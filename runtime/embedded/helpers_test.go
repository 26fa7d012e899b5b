package embedded_test

import (
	"testing"

	"github.com/sublet-dev/agent/internal/leaktest"
	"github.com/sublet-dev/agent/runtime/embedded"
	"github.com/sublet-dev/agent/runtime/embedded/internal/embeddedtest"
	"github.com/sublet-dev/agent/runtime/embedded/simulated"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

type rig struct{ *embeddedtest.Fixture }

// newRig returns a runtime, of simulated containers unless cfg has another executor.
func newRig(t testing.TB, cfg embedded.Config) *rig {
	t.Helper()
	if cfg.Executor == nil {
		cfg.Executor = simulated.New(simulated.Config{})
	}
	return &rig{embeddedtest.New(t, cfg)}
}
