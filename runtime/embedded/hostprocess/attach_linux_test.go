package hostprocess

import (
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/runtime/embedded"
	"github.com/sublet-dev/agent/runtime/embedded/internal/embeddedtest"
)

// blocking is the output of a client that takes nothing before the channel is closed.
type blocking chan struct{}

func (b blocking) Write(p []byte) (int, error) {
	<-b
	return len(p), nil
}

// isOutputBlocked reports whether the output of a container waits for an attached client.
func isOutputBlocked() bool {
	stacks := make([]byte, 1<<20)
	for g := range strings.SplitSeq(string(stacks[:runtime.Stack(stacks, true)]), "\n\n") {
		state, calls, _ := strings.Cut(g, "\n")
		if strings.Contains(state, "[select") && strings.Contains(calls, "embedded.output.Write(") {
			return true
		}
	}
	return false
}

// A container that prints without end is stopped although an attached client takes
// nothing of it.
func TestExecutor_StopsWhileAnAttachedClientBlocks(t *testing.T) {
	for name, stop := range map[string]func(g *rig, id string) error{
		"StopContainer": func(g *rig, id string) error {
			_, err := g.StopContainer(t.Context(), &v1.StopContainerRequest{ContainerId: id})
			return err
		},
		"Close": func(g *rig, _ string) error { return g.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			g := hostRig(t)
			id := g.Start(t, g.RunPod(t, embeddedtest.PodConfig("p")), nil, "yes")
			stdout, attached := make(blocking), make(chan error, 1)
			go func() { attached <- g.AttachStreams(t.Context(), id, embedded.IO{Stdout: stdout}, nil) }()
			t.Cleanup(func() {
				close(stdout)
				<-attached
			})
			require.Eventually(t, isOutputBlocked, 30*time.Second, time.Millisecond)

			stopped := make(chan error, 1)
			go func() { stopped <- stop(g, id) }()
			select {
			case err := <-stopped:
				require.NoError(t, err)
			case <-time.After(30 * time.Second):
				require.FailNow(t, "the container is not stopped")
			}
			r, err := g.ContainerStatus(t.Context(), &v1.ContainerStatusRequest{ContainerId: id})
			require.NoError(t, err)
			assert.Equal(t, v1.ContainerState_CONTAINER_EXITED, r.GetStatus().GetState())
			assert.Equal(t, int32(137), r.GetStatus().GetExitCode())
			assert.Empty(t, attached, "the client blocks")
			assert.Eventually(t, func() bool { return !isOutputBlocked() }, 30*time.Second, time.Millisecond)
		})
	}
}
