package embedded_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/runtime/embedded"
	"github.com/sublet-dev/agent/runtime/embedded/hostprocess"
	"github.com/sublet-dev/agent/runtime/embedded/simulated"
)

// decorated is an Executor around another, as one that traces.
type decorated struct{ embedded.Executor }

func (d decorated) Unwrap() any { return d.Executor }

// A decorated Executor is checked, called before a sandbox is created and closed as the
// decorated one is.
func TestRuntime_KeepsTheCapabilitiesOfADecoratedExecutor(t *testing.T) {
	inner := simulated.New(simulated.Config{})
	for name, executor := range map[string]embedded.Executor{"plain": inner, "decorated": decorated{inner}} {
		rt, err := embedded.New(embedded.Config{Executor: executor})
		require.NoError(t, err)
		_, err = rt.RunPodSandbox(t.Context(), &v1.RunPodSandboxRequest{Config: &v1.PodSandboxConfig{
			Metadata:    &v1.PodSandboxMetadata{Name: "p", Namespace: "n", Uid: "u"},
			Annotations: map[string]string{simulated.ScriptPrefix + "sandbox-error": "boom"},
		}})
		assert.ErrorContains(t, err, "boom", name)
		require.NoError(t, rt.Close())
	}
	_, err := embedded.New(embedded.Config{Executor: decorated{hostprocess.New(hostprocess.Config{Root: "relative"})}})
	assert.ErrorContains(t, err, "Root", "the error of the decorated executor")
}

func TestNew_RequiresAnExecutor(t *testing.T) {
	_, err := embedded.New(embedded.Config{})
	assert.ErrorContains(t, err, "Config.Executor required")
}
