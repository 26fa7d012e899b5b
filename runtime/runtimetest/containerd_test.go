//go:build linux

package runtimetest_test

import (
	"context"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/internal/containerdtest"
	"github.com/sublet-dev/agent/runtime/runtimetest"
)

// The known failures of these runtimes are in known_failures.go.
func TestRuntime_Containerd(t *testing.T) {
	if testing.Short() {
		t.Skip("takes a minute a runtime")
	}
	containerdtest.Stress(t, func(t *testing.T, n *containerdtest.Node) {
		const username, password = "reader", "correct horse"
		private := n.PushBusybox(t, "private", "1", containerdtest.File{Name: "private", Data: []byte("3"), Mode: 0o644})
		n.Registry.Protect("private", username, password)
		second := n.PushStopSignal(t, "second", "1", "SIGUSR1", containerdtest.File{Name: "second", Data: []byte("2"), Mode: 0o644})
		runtimetest.TestRuntime(t, func(t testing.TB) *grpc.ClientConn { return n.Dial(t) },
			runtimetest.KnownRuntimes(), runtimetest.Image(n.Busybox), runtimetest.SecondImage(second),
			runtimetest.PrivateImage(private, username, password), runtimetest.CDISpecDir(n.CDISpecDir()),
			runtimetest.WithoutHostPorts(), // the network has no plug-in portmap, which needs iptables
			runtimetest.LogRoot(filepath.Join(n.Shared, "logs")),
			runtimetest.EditPod(func(pod *v1.PodSandboxConfig) {
				pod.Linux.CgroupParent = n.CgroupParent + "/" + pod.GetMetadata().GetUid()
			}),
			runtimetest.Restart(func(context.Context) error {
				n.StopDaemon(t, syscall.SIGKILL)
				n.StartDaemon(t)
				return nil
			}))
	})
}

func TestMeasureBaseline_Containerd(t *testing.T) {
	if testing.Short() {
		t.Skip("takes some seconds")
	}
	containerdtest.Each(t, func(t *testing.T, n *containerdtest.Node) {
		r, err := runtimetest.MeasureBaseline(t.Context(), n.Dial(t), runtimetest.BaselineConfig{
			Pods: 8, MaxParallel: 2, Image: n.Busybox,
			EditPod: func(pod *v1.PodSandboxConfig) {
				pod.Linux.CgroupParent = n.CgroupParent + "/" + pod.GetMetadata().GetUid()
			},
		})
		require.NoError(t, err)
		t.Log("\n" + r.String())
	})
}
