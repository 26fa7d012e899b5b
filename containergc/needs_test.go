package containergc_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sublet-dev/agent/containergc"
	"github.com/sublet-dev/agent/internal/needtest"
)

func TestConfig_Needs(t *testing.T) {
	assert.Equal(t, []string{"container collection (runtime.ContainerRemover)"}, needtest.Names(containergc.Config{}.Needs()))
}

func TestConfig_CheckNeedsNothingRequired(t *testing.T) {
	require.NoError(t, containergc.Config{}.Check())
	for _, c := range []containergc.Config{{Period: -1}, {RequestDelay: -1}, {RemovalInterval: -1}} {
		require.EqualError(t, c.Check(), "containergc: Config: Period, RequestDelay and RemovalInterval must not be negative")
	}
	require.ErrorContains(t, containergc.Config{Policy: containergc.Policy{MinAge: -1}}.Check(), "containergc: Config.Policy: MinAge")
}
