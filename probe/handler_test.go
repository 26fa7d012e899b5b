package probe

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/sublet-dev/agent/runtime"
)

// once runs a probe once in a bubble, with the ports of the node.
func once(t *testing.T, n *fakeNode, h corev1.ProbeHandler, change func(*target)) (f probeOutcome, took time.Duration) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		m, err := New(Config{PodCache: n, Execer: n, Dial: n.dial})
		require.NoError(t, err)
		spec := podOf("u", nil, &corev1.Probe{ProbeHandler: h, TimeoutSeconds: 2}, nil)
		c := &spec.Spec.Containers[0]
		c.Ports = []corev1.ContainerPort{{Name: "web", ContainerPort: 80}}
		c.Env = []corev1.EnvVar{
			{Name: "A", Value: "1"},
			{Name: "B", Value: "$(A)2"},
			{Name: "SECRET", ValueFrom: &corev1.EnvVarSource{}},
		}
		tg := target{kind: Readiness, pod: spec, container: c, spec: c.ReadinessProbe, id: "1", ip: "10.0.0.1"}
		if change != nil {
			change(&tg)
		}
		ctx, cancel := context.WithTimeout(t.Context(), timeout(tg.spec))
		defer cancel()
		began := time.Now()
		f = m.handle(ctx, tg)
		took = time.Since(began)
	})
	return f, took
}

// serve answers one request on a connection with text.
func serve(text string) func(net.Conn) {
	return func(c net.Conn) {
		defer c.Close()
		if _, err := http.ReadRequest(bufio.NewReader(c)); err == nil {
			io.WriteString(c, text)
		}
	}
}

func get(path string) corev1.ProbeHandler {
	return corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: path, Port: intstr.FromString("web")}}
}

// PB-5: which responses count as success.
func TestHTTPProbe_Responses(t *testing.T) {
	for _, tt := range []struct {
		answer  string
		want    runtime.ProbeResult
		message string
	}{
		{"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", runtime.ProbeSuccess, ""},
		{"HTTP/1.1 101 Switching Protocols\r\n\r\n", runtime.ProbeFailure, "status 101"},
		{"HTTP/1.1 204 No Content\r\n\r\n", runtime.ProbeSuccess, ""},
		{"HTTP/1.1 302 Found\r\nLocation: http://example.com/x\r\nContent-Length: 6\r\n\r\nFound\n", runtime.ProbeSuccess, "Probe terminated redirects, Response body: Found"},
		{"HTTP/1.1 307 Temporary\r\nLocation: http://example.com/x\r\nContent-Length: 5000\r\n\r\n" + strings.Repeat("y", 5000), runtime.ProbeSuccess, strings.Repeat("y", maxMessage)},
		{"HTTP/1.1 399 Odd\r\nContent-Length: 0\r\n\r\n", runtime.ProbeSuccess, ""},
		{"HTTP/1.1 400 Bad\r\nContent-Length: 0\r\n\r\n", runtime.ProbeFailure, "status 400"},
		{"HTTP/1.1 503 Down\r\nContent-Length: 6\r\n\r\nsecret", runtime.ProbeFailure, "status 503"},
		{"HTTP/1.1 200 OK\r\nContent-Length: 20\r\n\r\nbroken off", runtime.ProbeFailure, "unexpected EOF"},
		{"this is not HTTP\r\n\r\n", runtime.ProbeFailure, "malformed HTTP"},
		{strings.Repeat("\x00", 5000) + "\r\n\r\n", runtime.ProbeFailure, "malformed HTTP"},
		{"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n" + strings.Repeat("x", maxOutput), runtime.ProbeSuccess, ""},
		{"", runtime.ProbeFailure, "EOF"},
	} {
		name, _, _ := strings.Cut(tt.answer, "\r")
		t.Run(name, func(t *testing.T) {
			n := newNode()
			n.ports["10.0.0.1:80"] = serve(tt.answer)
			f, _ := once(t, n, get("/"), nil)
			assert.Equal(t, tt.want, f.result, f.message)
			assert.Contains(t, f.message, tt.message)
			assert.NotContains(t, f.message, "secret")
			assert.Less(t, len(f.message), maxMessage+100)
		})
	}
}

// PB-5: a body that never ends is not read to its end.
func TestHTTPProbe_EndlessBody(t *testing.T) {
	n := newNode()
	read := 0
	n.ports["10.0.0.1:80"] = func(c net.Conn) {
		defer c.Close()
		http.ReadRequest(bufio.NewReader(c))
		io.WriteString(c, "HTTP/1.1 200 OK\r\n\r\n")
		for {
			k, err := c.Write(make([]byte, 512))
			read += k
			if err != nil {
				return
			}
		}
	}
	f, took := once(t, n, get("/"), nil)
	assert.Equal(t, runtime.ProbeSuccess, f.result, f.message)
	assert.Less(t, read, 2*maxOutput)
	assert.Zero(t, took)
}

// PB-2: a server that accepts and does not respond fails the probe at the timeout.
func TestProbe_TimesOutWithoutAnswer(t *testing.T) {
	silent := func(c net.Conn) {
		io.Copy(io.Discard, c)
		c.Close()
	}
	slow := func(c net.Conn) {
		defer c.Close()
		http.ReadRequest(bufio.NewReader(c))
		io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n")
		io.Copy(io.Discard, c)
	}
	for name, serve := range map[string]func(net.Conn){"no answer": silent, "no body": slow} {
		t.Run(name, func(t *testing.T) {
			n := newNode()
			n.ports["10.0.0.1:80"] = serve
			f, took := once(t, n, get("/"), nil)
			assert.Equal(t, failed("no answer within 2s"), f)
			assert.Equal(t, 2*time.Second, took)
		})
	}
}

// PB-5: the request.
func TestHTTPProbe_Request(t *testing.T) {
	for _, tt := range []struct {
		name    string
		action  corev1.HTTPGetAction
		address string
		check   func(*testing.T, *http.Request)
	}{
		{
			"defaults",
			corev1.HTTPGetAction{Port: intstr.FromInt32(8080)},
			"10.0.0.1:8080",
			func(t *testing.T, r *http.Request) {
				assert.Equal(t, "/", r.RequestURI)
				assert.Equal(t, "10.0.0.1:8080", r.Host)
				assert.Equal(t, "kube-probe/1.37", r.UserAgent())
				assert.Equal(t, "*/*", r.Header.Get("Accept"))
				assert.True(t, r.Close)
			},
		},
		{
			"path with a query and no slash",
			corev1.HTTPGetAction{Path: "healthz?full=1&x=%20", Port: intstr.FromString("web")},
			"10.0.0.1:80",
			func(t *testing.T, r *http.Request) { assert.Equal(t, "/healthz?full=1&x=%20", r.RequestURI) },
		},
		{
			"escaped path",
			corev1.HTTPGetAction{Path: "/a%2Fb", Port: intstr.FromString("web")},
			"10.0.0.1:80",
			func(t *testing.T, r *http.Request) { assert.Equal(t, "/a%2Fb", r.RequestURI) },
		},
		{
			"a URL as path cannot change where to ask",
			corev1.HTTPGetAction{Path: "http://example.com:1/x", Port: intstr.FromString("web")},
			"10.0.0.1:80",
			func(t *testing.T, r *http.Request) { assert.Equal(t, "/x", r.RequestURI) },
		},
		{
			"another host",
			corev1.HTTPGetAction{Host: "fd00::1", Port: intstr.FromInt32(80)},
			"[fd00::1]:80",
			func(t *testing.T, r *http.Request) { assert.Equal(t, "[fd00::1]:80", r.Host) },
		},
		{
			"headers as given",
			corev1.HTTPGetAction{Port: intstr.FromString("web"), HTTPHeaders: []corev1.HTTPHeader{
				{Name: "Host", Value: "shop.example"},
				{Name: "user-agent", Value: "mine"},
				{Name: "X-Two", Value: "1"},
				{Name: "X-Two", Value: "2"},
				{Name: "Accept", Value: "text/plain"},
			}},
			"10.0.0.1:80",
			func(t *testing.T, r *http.Request) {
				assert.Equal(t, "shop.example", r.Host)
				assert.Equal(t, "mine", r.UserAgent())
				assert.Equal(t, []string{"1", "2"}, r.Header["X-Two"])
				assert.Equal(t, []string{"text/plain"}, r.Header["Accept"])
			},
		},
		{
			"a user agent that is given as empty is not sent",
			corev1.HTTPGetAction{Port: intstr.FromString("web"), HTTPHeaders: []corev1.HTTPHeader{{Name: "User-Agent"}}},
			"10.0.0.1:80",
			func(t *testing.T, r *http.Request) { assert.Empty(t, r.UserAgent()) },
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n := newNode()
			var req *http.Request
			n.ports[tt.address] = func(c net.Conn) {
				defer c.Close()
				req, _ = http.ReadRequest(bufio.NewReader(c))
				io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
			}
			f, _ := once(t, n, corev1.ProbeHandler{HTTPGet: &tt.action}, nil)
			require.Equal(t, runtime.ProbeSuccess, f.result, f.message)
			tt.check(t, req)
		})
	}
}

// PB-5: redirects to the same host are followed, up to a limit.
func TestHTTPProbe_Redirects(t *testing.T) {
	n := newNode()
	asked := 0
	n.ports["10.0.0.1:80"] = func(c net.Conn) {
		defer c.Close()
		r, err := http.ReadRequest(bufio.NewReader(c))
		if err != nil {
			return
		}
		asked++
		to := map[string]string{"/": "/b", "/b": "http://10.0.0.1:80/c", "/loop": "/loop"}[r.URL.Path]
		if to == "" {
			io.WriteString(c, "HTTP/1.1 500 End\r\nContent-Length: 0\r\n\r\n")
			return
		}
		fmt.Fprintf(c, "HTTP/1.1 301 Moved\r\nLocation: %s\r\nContent-Length: 0\r\n\r\n", to)
	}
	f, _ := once(t, n, get("/"), nil)
	assert.Equal(t, failed("status 500"), f, "the last answer counts")
	assert.Equal(t, 3, asked)
	f, _ = once(t, n, get("/loop"), nil)
	assert.Equal(t, failed("redirected 10 times"), f)
}

// PB-1: the other handlers, and those that cannot run.
func TestProbe_Handlers(t *testing.T) {
	tcp := func(port string) corev1.ProbeHandler {
		return corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.Parse(port)}}
	}
	for _, tt := range []struct {
		name   string
		h      corev1.ProbeHandler
		change func(*target)
		want   probeOutcome
	}{
		{"tcp", tcp("web"), nil, succeeded()},
		{"tcp refused", tcp("81"), nil, failed("dial 10.0.0.1:81: connection refused")},
		{"tcp on another host", corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Host: "10.0.0.2", Port: intstr.FromInt32(80)}}, nil, failed("dial 10.0.0.2:80: connection refused")},
		{"unknown port", tcp("nowhere"), nil, unknown(errors.New("container a has no port nowhere"))},
		{"port out of range", tcp("70000"), nil, unknown(errors.New("container a has no port 70000"))},
		{"no address", tcp("80"), func(tg *target) { tg.ip = "" }, unknown(errors.New("pod has no IP"))},
		{"exec", corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"$(B)", "$(SECRET)", "$$(A)"}}}, nil, succeeded()},
		{"grpc without a client", corev1.ProbeHandler{GRPC: &corev1.GRPCAction{Port: 1}}, nil, unknown(fmt.Errorf("grpc: %w", runtime.ErrUnsupported))},
		{"nothing", corev1.ProbeHandler{}, nil, unknown(errors.New("probe has no handler"))},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n := newNode()
			n.ports["10.0.0.1:80"] = func(c net.Conn) { c.Close() }
			f, _ := once(t, n, tt.h, tt.change)
			assert.Equal(t, tt.want, f)
			if tt.h.Exec != nil {
				assert.Equal(t, []string{"12", "$(SECRET)", "$(A)"}, n.runs()[0].cmd)
			}
		})
	}
}

// PB-1: the outcomes of commands.
func TestExecProbe_Outcomes(t *testing.T) {
	h := corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"x"}}}
	for _, tt := range []struct {
		name string
		out  string
		code int
		err  error
		want probeOutcome
	}{
		{"well", "all well", 0, nil, succeeded()},
		{"exit code", "broken\n", 2, nil, failed("exit code 2: broken")},
		{"odd bytes", "a\xffb", 2, nil, failed("exit code 2: ab")},
		{"more than anybody reads", strings.Repeat("x", 2*maxOutput), 2, nil, failed("exit code 2: %s", strings.Repeat("x", maxMessage))},
		{"too slow", "", 0, fmt.Errorf("ExecSync: %w", runtime.ErrDeadlineExceeded), failed("the command did not end within 2s")},
		{"no such container", "", 0, runtime.ErrNotFound, unknown(runtime.ErrNotFound)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n := newNode()
			n.run = func(context.Context, string, []string) (string, int, error) { return tt.out, tt.code, tt.err }
			f, _ := once(t, n, h, nil)
			assert.Equal(t, tt.want, f)
		})
	}
	m, err := New(Config{PodCache: newNode()})
	require.NoError(t, err)
	f := m.handle(t.Context(), target{spec: &corev1.Probe{ProbeHandler: h}})
	assert.Equal(t, runtime.ProbeUnknown, f.result, "nobody to run it")
}

// PB-1: grpc probes check the service of the pod with Config.GRPC.
func TestGRPCProbe(t *testing.T) {
	n := newNode()
	var asked []string
	answer := error(nil)
	m, err := New(Config{PodCache: n, GRPC: func(_ context.Context, address, service string) error {
		asked = append(asked, address+" "+service)
		return answer
	}})
	require.NoError(t, err)
	service := "shop"
	h := corev1.ProbeHandler{GRPC: &corev1.GRPCAction{Port: 9000, Service: &service}}
	tg := target{spec: &corev1.Probe{ProbeHandler: h}, container: &corev1.Container{}, ip: "fd00::1"}
	assert.Equal(t, succeeded(), m.handle(t.Context(), tg))
	answer = errors.New("not serving")
	tg.spec.GRPC.Service = nil
	assert.Equal(t, failed("not serving"), m.handle(t.Context(), tg))
	assert.Equal(t, []string{"[fd00::1]:9000 shop", "[fd00::1]:9000 "}, asked)
	answer = errors.New("odd \xff" + strings.Repeat("x", 5000))
	assert.Equal(t, failed("odd %s", strings.Repeat("x", maxMessage-5)), m.handle(t.Context(), tg), "the server has its say in it")
}

// PB-1: pods with hostNetwork are probed at the address of the node.
func TestTarget_Address(t *testing.T) {
	hostIP := "192.0.2.1"
	m, err := New(Config{PodCache: newNode(), HostIP: func() string { return hostIP }})
	require.NoError(t, err)
	c := &runtime.Container{ID: "1", SandboxID: "new"}
	observed := runtime.Pod{Sandboxes: []runtime.Sandbox{{ID: "old", IPs: []string{"10.0.0.9"}}, {ID: "new", IPs: []string{"10.0.0.1", "fd00::1"}}}}
	spec := podOf("u", nil, nil, nil)
	b := &probe{pod: &pod{spec: spec, observed: observed}, container: &spec.Spec.Containers[0]}
	assert.Equal(t, "10.0.0.1", m.target(b, c).ip)
	hostIP = "2001:db8::1"
	assert.Equal(t, "fd00::1", m.target(b, c).ip, "the one that its status has first")
	hostIP = "192.0.2.1"
	observed.Sandboxes[1].IPs = nil
	assert.Empty(t, m.target(b, c).ip)
	spec.Spec.HostNetwork = true
	assert.Equal(t, "192.0.2.1", m.target(b, c).ip)
	hostIP = "192.0.2.2"
	assert.Equal(t, "192.0.2.2", m.target(b, c).ip, "as it is now")
	m, err = New(Config{PodCache: newNode(), HostIP: func() string { panic("no address") }})
	require.NoError(t, err)
	assert.Equal(t, "127.0.0.1", m.target(b, c).ip, "AG-9")
	hostIP = ""
	assert.Equal(t, "127.0.0.1", m.target(b, c).ip, "not known")
	observed.Sandboxes[1].IPs = []string{"10.0.0.2"}
	assert.Equal(t, "10.0.0.2", m.target(b, c).ip, "the runtime knows better")
}

// PB-5: certificates are not verified.
func TestHTTPProbe_UnverifiedCertificate(t *testing.T) {
	srv := newTLSServer(t)
	m, err := New(Config{PodCache: newNode()})
	require.NoError(t, err)
	host, port, err := net.SplitHostPort(srv)
	require.NoError(t, err)
	h := corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Scheme: corev1.URISchemeHTTPS, Host: host, Port: intstr.Parse(port)}}
	f := m.handle(t.Context(), target{spec: &corev1.Probe{ProbeHandler: h}, container: &corev1.Container{}})
	assert.Equal(t, succeeded(), f)
}

// PB-5: a redirect to another host succeeds with a warning.
func TestHTTPProbe_WarnsOfRedirect(t *testing.T) {
	inBubble(t, func(b *bench) {
		b.n.with(func() {
			b.n.ports["10.0.0.1:80"] = serve("HTTP/1.1 302 Found\r\nLocation: http://example.com/\r\nContent-Length: 0\r\n\r\n")
		})
		h := get("/")
		h.HTTPGet.Port = intstr.FromInt32(80)
		b.n.set("u", "1", runtime.Running)
		b.AddPod(podOf("u", nil, every(10, h), nil))
		b.after(2 * time.Second)
		assert.Equal(t, []string{"Readiness 1 passed"}, b.changes())
		require.Len(t, b.n.events(), 1)
		assert.Equal(t, "ProbeWarning", b.n.events()[0].Reason)
	})
}

func newTLSServer(t *testing.T) string {
	srv := httptest.NewTLSServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	t.Cleanup(srv.Close)
	return srv.Listener.Addr().String()
}
