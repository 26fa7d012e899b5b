package embedded

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// ip is the address of a pod.
func (g *rig) ip(t *testing.T, sandbox string) string {
	t.Helper()
	r, err := g.rs.PodSandboxStatus(t.Context(), &v1.PodSandboxStatusRequest{PodSandboxId: sandbox})
	require.NoError(t, err)
	return r.GetStatus().GetNetwork().GetIp()
}

// connects reports what a TCP probe of an address would hear.
func (g *rig) connects(t *testing.T, address string) error {
	t.Helper()
	conn, err := g.DialContext(t.Context(), "tcp", address)
	if err != nil {
		return err
	}
	return conn.Close()
}

func (g *rig) get(t *testing.T, url string) int {
	t.Helper()
	client := http.Client{Transport: &http.Transport{
		DialContext: g.DialContext, DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true},
	}}
	resp, err := client.Get(url)
	require.NoError(t, err)
	_, err = io.Copy(io.Discard, resp.Body)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	return resp.StatusCode
}

func (g *rig) serving(t *testing.T, address string) grpc_health_v1.HealthCheckResponse_ServingStatus {
	t.Helper()
	cc, err := grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) { return g.DialContext(ctx, "tcp", address) }))
	require.NoError(t, err)
	defer func() { require.NoError(t, cc.Close()) }()
	resp, err := grpc_health_v1.NewHealthClient(cc).Check(t.Context(), &grpc_health_v1.HealthCheckRequest{Service: "any"})
	require.NoError(t, err)
	return resp.GetStatus()
}

func TestSimulated_AnswersProbes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, Config{})
		sb := g.run(t, podConfig("p"))
		at := g.ip(t, sb) + ":80"
		assert.ErrorIs(t, g.connects(t, at), syscall.ECONNREFUSED, "nothing runs yet")
		id := g.start(t, sb, nil)
		assert.NoError(t, g.connects(t, at))
		assert.Equal(t, http.StatusOK, g.get(t, "http://"+at+"/healthz"))
		assert.Equal(t, http.StatusOK, g.get(t, "https://"+at))
		assert.Equal(t, grpc_health_v1.HealthCheckResponse_SERVING, g.serving(t, at))
		open, err := g.DialContext(t.Context(), "tcp", at)
		require.NoError(t, err)
		g.stop(t, id, 1)
		_, err = open.Read(make([]byte, 1))
		assert.ErrorIs(t, err, io.EOF, "connections end with the container")
		assert.ErrorIs(t, g.connects(t, at), syscall.ECONNREFUSED)
	})
}

func TestSimulated_AnswersProbesByScript(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, Config{})
		sb := g.run(t, podConfig("p", "c.sim.sublet.dev/ports: 80,81", "c.sim.sublet.dev/http-status: 503,500,200",
			"c.sim.sublet.dev/listen-after: 10s", "c.sim.sublet.dev/answer-delay: 2s", "other.sim.sublet.dev/ports: none",
			"third.sim.sublet.dev/ports: 90", "third.sim.sublet.dev/grpc-status: NOT_SERVING, SERVING"))
		for _, name := range []string{"c", "other", "third"} {
			g.start(t, sb, func(c *v1.ContainerConfig) { c.Metadata.Name = name })
		}
		ip := g.ip(t, sb)
		assert.ErrorIs(t, g.connects(t, ip+":80"), syscall.ECONNREFUSED, "too early")
		time.Sleep(10 * time.Second)
		begin := time.Now()
		assert.NoError(t, g.connects(t, ip+":81"))
		assert.Equal(t, 2*time.Second, time.Since(begin))
		assert.ErrorIs(t, g.connects(t, ip+":82"), syscall.ECONNREFUSED)
		for _, want := range []int{503, 500, 200, 200} {
			assert.Equal(t, want, g.get(t, "http://"+ip+":80/"))
		}
		assert.Equal(t, grpc_health_v1.HealthCheckResponse_NOT_SERVING, g.serving(t, ip+":90"))
		assert.Equal(t, grpc_health_v1.HealthCheckResponse_SERVING, g.serving(t, ip+":90"))
	})
}

func TestConn_NeverDialsPodsOnTheNetwork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // a connection of the network would be no good in here
		g := newRig(t, Config{})
		assert.ErrorIs(t, g.connects(t, "10.88.0.77:80"), syscall.ECONNREFUSED, "an address of no pod")
		host := podConfig("host", "sim.sublet.dev/ports: 80")
		host.Linux = &v1.LinuxPodSandboxConfig{SecurityContext: &v1.LinuxSandboxSecurityContext{NamespaceOptions: &v1.NamespaceOption{Network: v1.NamespaceMode_NODE}}}
		g.start(t, g.run(t, host), nil)
		assert.NoError(t, g.connects(t, "192.0.2.1:80"), "a pod on the node's network")
		assert.ErrorIs(t, g.connects(t, "192.0.2.1:81"), syscall.ECONNREFUSED)

		own := newRig(t, Config{Executor: plain{NewSimulated(SimulatedConfig{})}})
		sb := own.run(t, podConfig("p"))
		own.start(t, sb, nil)
		assert.ErrorContains(t, own.connects(t, own.ip(t, sb)+":80"), "does not support it", "an executor that is no Dialer")
	})
}

// plain is an executor without more powers.
type plain struct{ Executor }

func TestConn_DialsHostProcessesOnTheLoopback(t *testing.T) {
	g := newRig(t, Config{Executor: NewHostProcess(HostConfig{})})
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { require.NoError(t, lis.Close()) }()
	g.run(t, podConfig("p"))
	assert.NoError(t, g.connects(t, lis.Addr().String()))
	assert.Error(t, g.connects(t, "nonsense"))
}

func TestScript_RejectsInvalidAnswers(t *testing.T) {
	for _, annotation := range []string{"http-status: 20", "http-status: x", "grpc-status: WELL", "ports: x", "listen-after: -1s"} {
		t.Run(annotation, func(t *testing.T) {
			g := newRig(t, Config{})
			r, err := g.rs.RunPodSandbox(t.Context(), &v1.RunPodSandboxRequest{Config: podConfig("p", ScriptPrefix+annotation)})
			assert.Error(t, err, fmt.Sprint(r))
		})
	}
}
