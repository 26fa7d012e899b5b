package embedded_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/runtime/embedded"
)

// decorated is an Executor around another, as one that traces.
type decorated struct{ embedded.Executor }

func (d decorated) Unwrap() any { return d.Executor }

// A decorated Executor is checked, asked before a sandbox is made and closed as the
// one in it.
func TestRuntime_KeepsTheCapabilitiesOfADecoratedExecutor(t *testing.T) {
	simulated := embedded.NewSimulated(embedded.SimulatedConfig{})
	for name, executor := range map[string]embedded.Executor{"plain": simulated, "decorated": decorated{simulated}} {
		rt, err := embedded.New(embedded.Config{Executor: executor})
		require.NoError(t, err)
		_, err = rt.RunPodSandbox(t.Context(), &v1.RunPodSandboxRequest{Config: &v1.PodSandboxConfig{
			Metadata:    &v1.PodSandboxMetadata{Name: "p", Namespace: "n", Uid: "u"},
			Annotations: map[string]string{embedded.ScriptPrefix + "sandbox-error": "boom"},
		}})
		assert.ErrorContains(t, err, "boom", name)
		require.NoError(t, rt.Close())
	}
	_, err := embedded.New(embedded.Config{Executor: decorated{embedded.NewHostProcess(embedded.HostConfig{Root: "relative"})}})
	assert.Error(t, err, "a fault of the one inside is told")
}
