package doctest

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sublet-dev/agent"
)

// The options go together with others.
func TestCSIOptions(t *testing.T) {
	root := t.TempDir()
	opts, err := csiOptions(root, "edge-1")
	require.NoError(t, err)
	_, err = agent.New(append(opts, agent.WithSimulatedRuntime(), agent.WithRootDir(root), agent.WithNodeName("edge-1"))...)
	require.NoError(t, err)
}
