package agent_test

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent"
	"github.com/sublet-dev/agent/podsource"
	"github.com/sublet-dev/agent/status"
)

// fromTheReadme is the README's program, word for word.
func fromTheReadme(ctx context.Context) error {
	a, err := agent.New(
		agent.WithNodeName("edge-1"),
		agent.WithSimulatedRuntime(), // or WithRuntimeEndpoint("unix:///run/containerd/containerd.sock")
		agent.WithSource("file", podsource.File("/etc/sublet/manifests")),
		agent.WithStatusSink(status.SinkFunc(func(_ context.Context, pod *corev1.Pod, st corev1.PodStatus) error {
			fmt.Println(pod.Name, st.Phase)
			return nil
		})),
	)
	if err != nil {
		return err
	}
	return a.Run(ctx)
}

func TestTheReadmesProgramIsTheOneThatIsCompiledHere(t *testing.T) {
	readme, err := os.ReadFile("README.md")
	require.NoError(t, err)
	_, rest, ok := strings.Cut(string(readme), "```go\n")
	require.True(t, ok, "the README has a program")
	program, _, ok := strings.Cut(rest, "```")
	require.True(t, ok)
	here, err := os.ReadFile("example_readme_test.go")
	require.NoError(t, err)
	require.Contains(t, string(here), program)
	require.Less(t, strings.Count(string(readme), "\n"), 150)

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.NoError(t, fromTheReadme(ctx), "and it runs")
}
