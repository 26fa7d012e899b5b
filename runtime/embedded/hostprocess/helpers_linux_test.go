package hostprocess

import (
	"testing"

	"github.com/sublet-dev/agent/internal/leaktest"
	"github.com/sublet-dev/agent/runtime/embedded"
	"github.com/sublet-dev/agent/runtime/embedded/internal/embeddedtest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

type rig struct{ *embeddedtest.Fixture }

// newRig returns a runtime of host processes.
func newRig(t testing.TB, executor *Executor) *rig {
	t.Helper()
	return &rig{embeddedtest.New(t, embedded.Config{Executor: executor})}
}
