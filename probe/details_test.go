package probe

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/sublet-dev/agent/runtime"
)

// PB-4: the latest change of each probe of each container is kept, until the pod is
// removed.
func TestBacklog(t *testing.T) {
	var b backlog
	change := func(uid types.UID, container string, k ProbeType, r runtime.ProbeResult) ResultChange {
		return ResultChange{UID: uid, Container: container, Type: k, Result: r}
	}
	b.add(change("u", "a", Readiness, runtime.ProbeSuccess))
	b.add(change("v", "a", Readiness, runtime.ProbeSuccess))
	b.add(change("u", "b", Readiness, runtime.ProbeFailure))
	b.add(change("u", "a", Liveness, runtime.ProbeFailure))
	b.add(change("u", "a", Readiness, runtime.ProbeFailure))
	b.forget("v")
	b.forget("unknown")
	assert.Equal(t, []ResultChange{
		change("u", "b", Readiness, runtime.ProbeFailure), change("u", "a", Liveness, runtime.ProbeFailure), change("u", "a", Readiness, runtime.ProbeFailure),
	}, b.drain())
	b.add(change("v", "a", Readiness, runtime.ProbeSuccess))
	b.forget("v")
	b.add(change("v", "a", Readiness, runtime.ProbeFailure))
	assert.Len(t, b.drain(), 1, "a pod that was forgotten is listed once")
	assert.Empty(t, b.drain())
}

// PB-1: fields that are not set have the defaults of the API.
func TestDefaultsOfProbe(t *testing.T) {
	var spec corev1.Probe
	assert.Equal(t, 10*time.Second, period(&spec))
	assert.Equal(t, time.Second, timeout(&spec))
	var c thresholdCounter
	assert.False(t, c.add(runtime.ProbeFailure, &spec))
	assert.False(t, c.add(runtime.ProbeFailure, &spec))
	assert.True(t, c.add(runtime.ProbeFailure, &spec))
	assert.True(t, c.add(runtime.ProbeSuccess, &spec))
	now := time.Now()
	assert.Zero(t, first(&spec, time.Time{}, now, 0).Sub(now))
	assert.Equal(t, time.Second/2, first(&spec, time.Time{}, now, 0.5).Sub(now), "it has just started")
	assert.Equal(t, time.Second/2, first(&spec, now.Add(-10*time.Second), now, 0.5).Sub(now), "started a period ago")
}

// PB-5: a request that cannot be made says nothing about the container.
func TestHTTPProbe_NoRequest(t *testing.T) {
	m, err := New(Config{PodCache: newNode()})
	require.NoError(t, err)
	outcome := m.get(t.Context(), target{container: &corev1.Container{}}, &corev1.HTTPGetAction{Port: intstr.FromInt32(80)})
	assert.Equal(t, probeOutcome{runtime.ProbeUnknown, "pod has no IP"}, outcome)
}

// PB-5: ten redirects to the same host are followed.
func TestStayOnHost(t *testing.T) {
	request := func(host string) *http.Request { return &http.Request{URL: &url.URL{Host: host}} }
	via := []*http.Request{request("a:80")}
	for len(via) < maxRedirects {
		require.NoError(t, stayOnHost(request("a:81"), via))
		via = append(via, request("a:80"))
	}
	require.ErrorContains(t, stayOnHost(request("a:80"), via), "redirected 10 times")
	require.ErrorIs(t, stayOnHost(request("b:80"), via), http.ErrUseLastResponse)
}

// PB-5: only a redirect that is not followed is a warning.
func TestHTTPProbe_LocationWithoutRedirect(t *testing.T) {
	for answer, warns := range map[string]bool{
		"HTTP/1.1 200 OK\r\nLocation: http://example.com/\r\nContent-Length: 0\r\n\r\n": false,
		"HTTP/1.1 300 Choices\r\nLocation: http://other/\r\nContent-Length: 0\r\n\r\n":  true,
		"HTTP/1.1 304 Not Modified\r\n\r\n":                                             false,
	} {
		n := newNode()
		n.ports["10.0.0.1:80"] = serve(answer)
		f, _ := once(t, n, get("/"), nil)
		assert.Equal(t, runtime.ProbeSuccess, f.result)
		assert.Equal(t, warns, strings.Contains(f.message, "redirects"), answer)
	}
}

// SL-3: only a running container of a saved status has results.
func TestResultsFromStatus(t *testing.T) {
	running, yes, no := corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}, true, false
	for name, tt := range map[string]struct {
		status corev1.ContainerStatus
		id     string
		want   runtime.ProbeResults
	}{
		"ready":       {corev1.ContainerStatus{ContainerID: "rt://1", State: running, Ready: true, Started: &yes}, "1", runtime.ProbeResults{Startup: runtime.ProbeSuccess, Readiness: runtime.ProbeSuccess, Liveness: runtime.ProbeSuccess}},
		"not started": {corev1.ContainerStatus{ContainerID: "1", State: running, Started: &no}, "1", runtime.ProbeResults{Readiness: runtime.ProbeFailure, Liveness: runtime.ProbeSuccess}},
		"unknown":     {corev1.ContainerStatus{ContainerID: "1", State: running}, "1", runtime.ProbeResults{Readiness: runtime.ProbeFailure, Liveness: runtime.ProbeSuccess}},
		"no id":       {corev1.ContainerStatus{State: running, Ready: true}, "", runtime.ProbeResults{}},
		"not running": {corev1.ContainerStatus{ContainerID: "1", Ready: true}, "", runtime.ProbeResults{}},
	} {
		id, results, ok := resultsFromStatus(&tt.status)
		assert.Equal(t, tt.id, id, name)
		assert.Equal(t, tt.id != "", ok, name)
		assert.Equal(t, tt.want, results, name)
	}
	p := &pod{previous: map[string]runtime.ProbeResults{"1": {Startup: runtime.ProbeSuccess, Readiness: runtime.ProbeUnknown, Liveness: runtime.ProbeFailure}}}
	for k, want := range map[ProbeType]runtime.ProbeResult{Startup: runtime.ProbeSuccess, Readiness: runtime.ProbeUnknown, Liveness: runtime.ProbeFailure} {
		assert.Equal(t, want, p.withoutProbe(k, "1"))
		assert.Equal(t, initial(k), p.withoutProbe(k, "2"))
	}
}

// PB-1: pods are cleaned up but for the given ones, and one without a spec has no
// results.
func TestManager_CleanupPods(t *testing.T) {
	m, err := New(Config{PodCache: newNode()})
	require.NoError(t, err)
	for _, uid := range []types.UID{"a", "b"} {
		m.AddPod(podOf(uid, nil, every(1, corev1.ProbeHandler{}), nil))
	}
	m.StopLivenessAndStartup("c")
	assert.Nil(t, m.Results("c"))
	assert.Nil(t, m.Results("unknown"))
	m.CleanupPods([]types.UID{"a", "x"})
	assert.NotNil(t, m.Results("a"))
	assert.Nil(t, m.Results("b"))
}

// AG-9: a panic of Dial fails the connection.
func TestNew_DialPanics(t *testing.T) {
	m, err := New(Config{PodCache: newNode(), Dial: func(context.Context, string, string) (net.Conn, error) { panic("dial") }})
	require.NoError(t, err)
	_, err = m.cfg.Dial(t.Context(), "tcp", "10.0.0.1:80")
	require.ErrorContains(t, err, "panic: dial")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.NoError(t, m.Run(ctx))
	require.ErrorContains(t, m.Run(ctx), "Run was called twice")
}

// PB-1: a server that speaks nothing but HTTP/2 over TLS is asked in it, with a connection for
// each run.
func TestHTTPProbe_HTTP2(t *testing.T) {
	var asked []string
	closed := make(chan struct{}, 2)
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		asked = append(asked, r.Proto+" "+r.Host)
	}))
	srv.EnableHTTP2 = true
	srv.Config.Protocols = &http.Protocols{}
	srv.Config.Protocols.SetHTTP2(true)
	srv.Config.ConnState = func(_ net.Conn, s http.ConnState) {
		if s == http.StateClosed {
			closed <- struct{}{}
		}
	}
	srv.StartTLS()
	t.Cleanup(srv.Close)
	m, err := New(Config{PodCache: newNode()})
	require.NoError(t, err)
	host, port, err := net.SplitHostPort(srv.Listener.Addr().String())
	require.NoError(t, err)
	h := corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{
		Scheme: corev1.URISchemeHTTPS, Host: host, Port: intstr.Parse(port), HTTPHeaders: []corev1.HTTPHeader{{Name: "Host", Value: "shop.example"}},
	}}
	for range 2 {
		assert.Equal(t, succeeded(), m.handle(t.Context(), target{spec: &corev1.Probe{ProbeHandler: h}, container: &corev1.Container{}}))
		<-closed
	}
	assert.Equal(t, []string{"HTTP/2.0 shop.example", "HTTP/2.0 shop.example"}, asked)
}
