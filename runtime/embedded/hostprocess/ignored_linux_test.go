package hostprocess

import (
	"os"
	"os/signal"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/runtime/embedded/internal/embeddedtest"
)

// A program that was started in the background ignores SIGINT. Its containers do not.
func TestExecutor_ContainersIgnoreNoSignals(t *testing.T) {
	signal.Ignore(syscall.SIGINT)
	t.Cleanup(func() { signal.Reset(syscall.SIGINT) })
	g := hostRig(t)
	sb := g.RunPod(t, embeddedtest.PodConfig("p"))
	killed := g.Start(t, sb, nil, "sh", "-c", "kill -INT $$; exit 3")
	assert.Equal(t, int32(130), g.AwaitExit(t, killed).GetExitCode())
	traps := g.Start(t, sb, func(c *v1.ContainerConfig) { c.Metadata.Attempt = 1 }, "sh", "-c", "trap 'exit 7' INT; kill -INT $$; exit 3")
	assert.Equal(t, int32(7), g.AwaitExit(t, traps).GetExitCode())

	this, err := os.FindProcess(os.Getpid())
	require.NoError(t, err)
	require.NoError(t, this.Signal(syscall.SIGINT), "which this process survives still")
}
