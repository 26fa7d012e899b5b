package embedded_test

import (
	"net"
	"syscall"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/runtime"
	"github.com/sublet-dev/agent/runtime/embedded"
	"github.com/sublet-dev/agent/runtime/embedded/hostprocess"
	"github.com/sublet-dev/agent/runtime/embedded/internal/embeddedtest"
	"github.com/sublet-dev/agent/runtime/embedded/simulated"
)

func TestConn_NeverDialsPodsOnTheNetwork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // a connection of the network would be no good in here
		g := newRig(t, embedded.Config{})
		assert.ErrorIs(t, g.TryDial(t, "10.88.0.77:80"), syscall.ECONNREFUSED, "an address of no pod")
		host := embeddedtest.PodConfig("host", "sim.sublet.dev/ports: 80")
		host.Linux = &v1.LinuxPodSandboxConfig{SecurityContext: &v1.LinuxSandboxSecurityContext{NamespaceOptions: &v1.NamespaceOption{Network: v1.NamespaceMode_NODE}}}
		g.Start(t, g.RunPod(t, host), nil)
		assert.NoError(t, g.TryDial(t, "192.0.2.1:80"), "a pod on the node's network")
		assert.ErrorIs(t, g.TryDial(t, "192.0.2.1:81"), syscall.ECONNREFUSED)

		own := newRig(t, embedded.Config{Executor: plain{simulated.New(simulated.Config{})}})
		sb := own.RunPod(t, embeddedtest.PodConfig("p"))
		own.Start(t, sb, nil)
		assert.ErrorContains(t, own.TryDial(t, own.PodIP(t, sb)+":80"), "does not support it", "an executor that is no Dialer")
	})
}

// A pod can stop while it is dialed: the dial just fails.
func TestConn_DialsPodsThatStop(t *testing.T) {
	g := newRig(t, embedded.Config{Executor: plain{simulated.New(simulated.Config{})}})
	for range 50 {
		sb := g.RunPod(t, embeddedtest.PodConfig("p"))
		address := g.PodIP(t, sb) + ":80"
		stopped, dials := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(dials)
			for {
				assert.Error(t, g.TryDial(t, address))
				select {
				case <-stopped:
					return
				default:
				}
			}
		}()
		_, err := g.CRI.RemovePodSandbox(t.Context(), &v1.RemovePodSandboxRequest{PodSandboxId: sb})
		require.NoError(t, err)
		close(stopped)
		<-dials
	}
}

// plain is an executor without more powers.
type plain struct{ embedded.Executor }

func TestConn_DialsHostProcessesOnTheLoopback(t *testing.T) {
	g := newRig(t, embedded.Config{Executor: hostprocess.New(hostprocess.Config{})})
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { require.NoError(t, lis.Close()) }()
	g.RunPod(t, embeddedtest.PodConfig("p"))
	assert.NoError(t, g.TryDial(t, lis.Addr().String()))
	assert.Error(t, g.TryDial(t, "nonsense"))
}

// runtime/cri finds the capability in a connection.
var (
	_ runtime.PodDialer = (*embedded.Conn)(nil)
	_ runtime.PodDialer = (*embedded.Runtime)(nil)
)
