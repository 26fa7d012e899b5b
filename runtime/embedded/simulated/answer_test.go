package simulated

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

	"github.com/sublet-dev/agent/runtime/embedded/internal/embeddedtest"
)

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

func TestExecutor_AnswersProbes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, Config{})
		sb := g.RunPod(t, embeddedtest.PodConfig("p"))
		at := g.PodIP(t, sb) + ":80"
		assert.ErrorIs(t, g.TryDial(t, at), syscall.ECONNREFUSED, "nothing runs yet")
		id := g.Start(t, sb, nil)
		assert.NoError(t, g.TryDial(t, at))
		assert.Equal(t, http.StatusOK, g.get(t, "http://"+at+"/healthz"))
		assert.Equal(t, http.StatusOK, g.get(t, "https://"+at))
		assert.Equal(t, grpc_health_v1.HealthCheckResponse_SERVING, g.serving(t, at))
		open, err := g.DialContext(t.Context(), "tcp", at)
		require.NoError(t, err)
		g.Stop(t, id, 1)
		_, err = open.Read(make([]byte, 1))
		assert.ErrorIs(t, err, io.EOF, "connections end with the container")
		assert.ErrorIs(t, g.TryDial(t, at), syscall.ECONNREFUSED)
	})
}

func TestExecutor_AnswersProbesByScript(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, Config{})
		sb := g.RunPod(t, embeddedtest.PodConfig("p", "c.sim.sublet.dev/ports: 80,81", "c.sim.sublet.dev/http-status: 503,500,200",
			"c.sim.sublet.dev/listen-after: 10s", "c.sim.sublet.dev/answer-delay: 2s", "other.sim.sublet.dev/ports: none",
			"third.sim.sublet.dev/ports: 90", "third.sim.sublet.dev/grpc-status: NOT_SERVING, SERVING"))
		for _, name := range []string{"c", "other", "third"} {
			g.Start(t, sb, func(c *v1.ContainerConfig) { c.Metadata.Name = name })
		}
		ip := g.PodIP(t, sb)
		assert.ErrorIs(t, g.TryDial(t, ip+":80"), syscall.ECONNREFUSED, "too early")
		time.Sleep(10 * time.Second)
		begin := time.Now()
		assert.NoError(t, g.TryDial(t, ip+":81"))
		assert.Equal(t, 2*time.Second, time.Since(begin))
		assert.ErrorIs(t, g.TryDial(t, ip+":82"), syscall.ECONNREFUSED)
		for _, want := range []int{503, 500, 200, 200} {
			assert.Equal(t, want, g.get(t, "http://"+ip+":80/"))
		}
		assert.Equal(t, grpc_health_v1.HealthCheckResponse_NOT_SERVING, g.serving(t, ip+":90"))
		assert.Equal(t, grpc_health_v1.HealthCheckResponse_SERVING, g.serving(t, ip+":90"))
	})
}

func TestExecutor_AnswersProbesByTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, Config{})
		sb := g.RunPod(t, embeddedtest.PodConfig("p", "sim.sublet.dev/http-status: 10m=503, 20m=200", "sim.sublet.dev/grpc-status: 0s=NOT_SERVING,10m=SERVING"))
		begin := time.Now()
		g.Start(t, sb, nil)
		at := g.PodIP(t, sb) + ":80"
		for _, want := range []int{200, 503, 200} {
			assert.Equal(t, want, g.get(t, "http://"+at))
			assert.Equal(t, want, g.get(t, "http://"+at), "the number of requests does not count")
			serving := grpc_health_v1.HealthCheckResponse_NOT_SERVING
			if time.Since(begin) >= 10*time.Minute {
				serving = grpc_health_v1.HealthCheckResponse_SERVING
			}
			assert.Equal(t, serving, g.serving(t, at))
			time.Sleep(10 * time.Minute)
		}
	})
}

func TestScript_RejectsInvalidAnswers(t *testing.T) {
	for _, annotation := range []string{"http-status: 20", "http-status: x", "http-status: 200,1m=503", "http-status: 1x=200", "http-status: 2m=200,1m=503", "grpc-status: 1m=WELL", "grpc-status: WELL", "ports: x", "listen-after: -1s"} {
		t.Run(annotation, func(t *testing.T) {
			g := newRig(t, Config{})
			r, err := g.CRI.RunPodSandbox(t.Context(), &v1.RunPodSandboxRequest{Config: embeddedtest.PodConfig("p", ScriptPrefix+annotation)})
			assert.Error(t, err, fmt.Sprint(r))
		})
	}
}
