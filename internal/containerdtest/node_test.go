//go:build linux

package containerdtest_test

import (
	"os"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/internal/containerdtest"
)

func TestNodeRunsASandboxAndLeavesNothing(t *testing.T) {
	var dir string
	t.Run("life", func(t *testing.T) {
		containerdtest.Each(t, func(t *testing.T, n *containerdtest.Node) {
			dir = n.Shared
			rt := cri.NewRuntimeServiceClient(n.Dial(t))
			config := &cri.PodSandboxConfig{
				Metadata: &cri.PodSandboxMetadata{Name: "p", Namespace: "default", Uid: "u"},
				Linux:    &cri.LinuxPodSandboxConfig{CgroupParent: n.CgroupParent + "/podu"}, // of the driver cgroupfs
			}
			sb, err := rt.RunPodSandbox(t.Context(), &cri.RunPodSandboxRequest{Config: config})
			require.NoError(t, err)
			require.NotEmpty(t, n.Cgroups())
			st, err := rt.PodSandboxStatus(t.Context(), &cri.PodSandboxStatusRequest{PodSandboxId: sb.GetPodSandboxId()})
			require.NoError(t, err)
			require.NotEmpty(t, st.GetStatus().GetNetwork().GetIp())
			n.StopDaemon(t, syscall.SIGKILL)
			n.StartDaemon(t)
			st, err = rt.PodSandboxStatus(t.Context(), &cri.PodSandboxStatusRequest{PodSandboxId: sb.GetPodSandboxId()})
			require.NoError(t, err)
			require.Equal(t, cri.PodSandboxState_SANDBOX_READY, st.GetStatus().GetState(), "pods outlive the daemon")
		})
	})
	if dir != "" {
		require.NoDirExists(t, dir)
		b, err := os.ReadFile("/proc/self/mounts")
		require.NoError(t, err)
		require.NotContains(t, string(b), dir)
	}
}
