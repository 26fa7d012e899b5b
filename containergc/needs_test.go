package containergc_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sublet-dev/agent/containergc"
	"github.com/sublet-dev/agent/runtime"
)

// needs lists what a Config needs of a runtime that can do nothing.
func needs(list []runtime.Need) (names []string) {
	for _, n := range list {
		name := n.String()
		if n.Optional {
			name = "optional: " + name
		}
		names = append(names, name)
	}
	return names
}

func TestConfig_Needs(t *testing.T) {
	assert.Equal(t, []string{"container collection (runtime.ContainerRemover)"}, needs(containergc.Config{}.Needs()))
}

func TestConfig_CheckNeedsNothingRequired(t *testing.T) {
	require.NoError(t, containergc.Config{}.Check())
	for _, c := range []containergc.Config{{Period: -1}, {RequestDelay: -1}, {RemovalInterval: -1}} {
		require.EqualError(t, c.Check(), "containergc: Config: Period, RequestDelay and RemovalInterval must not be negative")
	}
	require.ErrorContains(t, containergc.Config{Policy: containergc.Policy{MinAge: -1}}.Check(), "containergc: Config.Policy: MinAge")
}
