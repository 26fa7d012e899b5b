//go:build unix

package runtimetest_test

import (
	"syscall"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/runtime/cri"
	"github.com/sublet-dev/agent/runtime/embedded"
	"github.com/sublet-dev/agent/runtime/embedded/simulated"
	"github.com/sublet-dev/agent/runtime/runtimetest"
)

// Probes and hooks reach the pods of an embedded runtime through the proxy too. The
// network would be of no use: a bubble does not allow it.
func TestProxy_DialsPodsOfTheRuntime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt, err := embedded.New(embedded.Config{
			Executor: simulated.New(simulated.Config{}), Images: []embedded.Image{{Ref: "app:1", Preloaded: true}},
		})
		require.NoError(t, err)
		defer func() { require.NoError(t, rt.Close()) }()
		direct, err := rt.Dial()
		require.NoError(t, err)
		defer func() { require.NoError(t, direct.Close()) }()
		proxy, err := runtimetest.NewProxy(direct, 1)
		require.NoError(t, err)
		defer proxy.Close()
		cc, err := proxy.Dial()
		require.NoError(t, err)
		defer func() { require.NoError(t, cc.Close()) }()
		client, err := cri.New(cc, cri.Config{})
		require.NoError(t, err)

		rs := v1.NewRuntimeServiceClient(cc)
		sandbox, err := rs.RunPodSandbox(t.Context(), &v1.RunPodSandboxRequest{Config: &v1.PodSandboxConfig{
			Metadata:    &v1.PodSandboxMetadata{Name: "web", Namespace: "default", Uid: "web-uid"},
			Annotations: map[string]string{simulated.ScriptPrefix + "ports": "80"},
		}})
		require.NoError(t, err)
		container, err := rs.CreateContainer(t.Context(), &v1.CreateContainerRequest{
			PodSandboxId: sandbox.GetPodSandboxId(),
			Config:       &v1.ContainerConfig{Metadata: &v1.ContainerMetadata{Name: "main"}, Image: &v1.ImageSpec{Image: "app:1"}},
		})
		require.NoError(t, err)
		_, err = rs.StartContainer(t.Context(), &v1.StartContainerRequest{ContainerId: container.GetContainerId()})
		require.NoError(t, err)
		status, err := rs.PodSandboxStatus(t.Context(), &v1.PodSandboxStatusRequest{PodSandboxId: sandbox.GetPodSandboxId()})
		require.NoError(t, err)
		ip := status.GetStatus().GetNetwork().GetIp()

		conn, err := client.DialContext(t.Context(), "tcp", ip+":80")
		require.NoError(t, err)
		assert.NoError(t, conn.Close())
		_, err = client.DialContext(t.Context(), "tcp", ip+":81")
		assert.ErrorIs(t, err, syscall.ECONNREFUSED)
	})
}
