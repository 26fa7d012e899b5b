//go:build linux

package podstream_test

import (
	"bytes"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/internal/containerdtest"
	"github.com/sublet-dev/agent/podstream"
	"github.com/sublet-dev/agent/runtime/cri"
)

func TestClient_Containerd(t *testing.T) {
	if testing.Short() {
		t.Skip("starts containerd")
	}
	containerdtest.Each(t, func(t *testing.T, n *containerdtest.Node) {
		conn := n.Dial(t)
		_, err := criv1.NewImageServiceClient(conn).PullImage(t.Context(), &criv1.PullImageRequest{Image: &criv1.ImageSpec{Image: n.Busybox}})
		require.NoError(t, err)
		client, err := cri.New(conn, cri.Config{})
		require.NoError(t, err)
		g := start(t, criv1.NewRuntimeServiceClient(conn), client, &criv1.PodSandboxConfig{
			LogDirectory: filepath.Join(n.Shared, "logs"), Linux: &criv1.LinuxPodSandboxConfig{CgroupParent: n.CgroupParent + "/podu1"},
		}, n.Busybox)
		g.request, g.response = "GET /none HTTP/1.0\r\n\r\n", "404"
		g.port = func(t *testing.T) uint16 {
			t.Helper()
			go func() {
				_ = g.exec(t, podstream.Options{Stdout: new(bytes.Buffer)}, "httpd", "-f", "-p", "8080", "-h", "/")
			}()
			require.Eventually(t, func() bool {
				return g.exec(t, podstream.Options{Stdout: new(bytes.Buffer)}, "sh", "-c", "grep -q :1F90 /proc/net/tcp /proc/net/tcp6") == nil
			}, time.Minute, 100*time.Millisecond)
			return 8080
		}
		testClient(t, g)
	})
}
