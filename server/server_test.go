package server_test

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sublet-dev/agent/internal/leaktest"
	"github.com/sublet-dev/agent/server"
)

const loopback = "127.0.0.1:0"

func get(t *testing.T, s http.Handler, path string) (int, string) {
	t.Helper()
	w := httptest.NewRecorder()
	s.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
	return w.Code, w.Body.String()
}

// All end by themselves within half a minute of their connection.
func TestMain(m *testing.M) {
	leaktest.Main(m,
		goleak.IgnoreTopFunction("github.com/moby/spdystream.(*Stream).WaitTimeout"),
		goleak.IgnoreAnyFunction("k8s.io/client-go/tools/remotecommand.(*heartbeat).start"),
		goleak.IgnoreAnyFunction("github.com/moby/spdystream.(*Connection).shutdown"))
}

func TestServer_Healthz(t *testing.T) {
	var wrong error
	s, err := server.New(server.Config{Addr: loopback, Checks: []server.HealthCheck{
		{Name: "loop", Check: func() error { return nil }},
		{Name: "runtime", Check: func() error { return wrong }},
	}, Warnings: func() []string { return []string{"DiskPressure True"} }})
	require.NoError(t, err)
	code, body := get(t, s, "/healthz")
	require.Equal(t, http.StatusOK, code)
	require.Equal(t, "ok", body)
	_, body = get(t, s, "/healthz?verbose")
	require.Equal(t, "[+] ping\n[+] log\n[+] loop\n[+] runtime\n[ ] DiskPressure True\nok", body)
	wrong = errors.New("connection refused")
	code, body = get(t, s, "/healthz")
	require.Equal(t, http.StatusInternalServerError, code)
	require.Equal(t, "[-] runtime: connection refused\n", body)
	code, body = get(t, s, "/healthz?verbose")
	require.Equal(t, http.StatusInternalServerError, code)
	require.Equal(t, "[+] ping\n[+] log\n[+] loop\n[-] runtime: connection refused\n[ ] DiskPressure True\n", body)
}

func TestServer_PodsAndProblems(t *testing.T) {
	s, err := server.New(server.Config{
		Addr: loopback,
		Pods: func() []*corev1.Pod {
			return []*corev1.Pod{
				{ObjectMeta: metav1.ObjectMeta{Name: "b", Namespace: "default"}, Status: corev1.PodStatus{Phase: corev1.PodRunning}},
				{ObjectMeta: metav1.ObjectMeta{Name: "a", Namespace: "default"}},
			}
		},
		Problems: func() []server.Problem {
			return []server.Problem{{Location: "a.yaml", Error: "no containers", Since: time.Unix(0, 0)}}
		},
		Handlers: map[string]http.Handler{"/metrics": http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "up 1") })},
	})
	require.NoError(t, err)
	_, body := get(t, s, "/pods")
	var list corev1.PodList
	require.NoError(t, json.Unmarshal([]byte(body), &list))
	require.Equal(t, "PodList", list.Kind)
	require.Equal(t, []string{"a", "b"}, []string{list.Items[0].Name, list.Items[1].Name})
	require.Equal(t, corev1.PodRunning, list.Items[1].Status.Phase)
	_, body = get(t, s, "/problems")
	require.Contains(t, body, `"location": "a.yaml"`)
	_, body = get(t, s, "/metrics")
	require.Equal(t, "up 1", body)
	code, _ := get(t, s, "/other")
	require.Equal(t, http.StatusNotFound, code)
	w := httptest.NewRecorder()
	s.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/pods", nil))
	require.Equal(t, http.StatusMethodNotAllowed, w.Code, "nothing can be changed through it")
}

func TestServer_EmptyLists(t *testing.T) {
	s, err := server.New(server.Config{Addr: loopback})
	require.NoError(t, err)
	_, body := get(t, s, "/pods")
	require.Contains(t, body, `"items": []`)
	_, body = get(t, s, "/problems")
	require.Equal(t, "[]\n", body)
}

func TestNew_Addresses(t *testing.T) {
	for addr, want := range map[string]error{
		"127.0.0.1:10255": nil, "[::1]:0": nil, "localhost:1": nil,
		"0.0.0.0:10255": server.ErrNotLoopback, ":10255": server.ErrNotLoopback, "10.0.0.1:1": server.ErrNotLoopback, "example.com:80": server.ErrNotLoopback,
	} {
		_, err := server.New(server.Config{Addr: addr})
		require.ErrorIs(t, err, want, addr)
		_, err = server.New(server.Config{Addr: addr, AllowNonLoopback: true})
		require.NoError(t, err, addr)
	}
	_, err := server.New(server.Config{Addr: "10255", AllowNonLoopback: true})
	require.ErrorContains(t, err, "host:port")
}

func TestNew_ReportsAllErrors(t *testing.T) {
	_, err := server.New(server.Config{Addr: "x", Checks: []server.HealthCheck{{Name: "a"}}, Handlers: map[string]http.Handler{"/pods": http.NotFoundHandler()}})
	for _, want := range []string{"host:port", `check "a"`, `handler "/pods"`} {
		require.ErrorContains(t, err, want)
	}
}

func TestRun_StopsWithContextAndReportsUsedAddress(t *testing.T) {
	l, err := net.Listen("tcp", loopback)
	require.NoError(t, err)
	s, err := server.New(server.Config{Addr: l.Addr().String()})
	require.NoError(t, err)
	require.ErrorContains(t, s.Run(t.Context()), "address already in use; stop the program that listens there, or choose another address")

	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx, l) }()
	r, err := http.Get("http://" + l.Addr().String() + "/healthz")
	require.NoError(t, err)
	_, _ = io.Copy(io.Discard, r.Body)
	require.NoError(t, r.Body.Close())
	cancel()
	require.NoError(t, <-done)
	http.DefaultClient.CloseIdleConnections()
	_, err = net.Dial("tcp", l.Addr().String())
	require.Error(t, err, "the port is free again")
}

func Example() {
	s, err := server.New(server.Config{Addr: "127.0.0.1:10255"})
	if err != nil {
		panic(err)
	}
	w := httptest.NewRecorder()
	s.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/healthz?verbose", nil))
	fmt.Print(w.Body)
	// Output:
	// [+] ping
	// [+] log
	// ok
}

// A web page can resolve its own host name to the loopback address.
func TestRun_RejectsForeignHosts(t *testing.T) {
	addr := serve(t, server.Config{Addr: loopback})
	_, port, err := net.SplitHostPort(addr)
	require.NoError(t, err)
	for host, want := range map[string]int{
		"127.0.0.1:" + port: 200, "localhost:" + port: 200, "localhost": 200, "[::1]:" + port: 200, "10.0.0.7": 200,
		"evil.example": 421, "evil.example:" + port: 421, "127.0.0.1.evil.example": 421, "localhost.evil.example": 421,
	} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+addr+"/pods", http.NoBody)
		require.NoError(t, err)
		req.Host = host
		r, err := http.DefaultClient.Do(req)
		require.NoError(t, err)
		require.NoError(t, r.Body.Close())
		require.Equal(t, want, r.StatusCode, host)
	}
	http.DefaultClient.CloseIdleConnections()
}

func listen(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", loopback)
	require.NoError(t, err)
	return l
}

// serve runs a server until the test ends.
func serve(t *testing.T, cfg server.Config, change ...func(*server.Server)) (addr string) {
	t.Helper()
	s, err := server.New(cfg)
	require.NoError(t, err)
	for _, c := range change {
		c(s)
	}
	addr, end := start(t, s)
	t.Cleanup(end)
	return addr
}

// start runs a server until end is called, which expects that it ends soon and without an error.
func start(t *testing.T, s *server.Server) (addr string, end func()) {
	t.Helper()
	l := listen(t)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx, l) }()
	return l.Addr().String(), func() {
		t.Helper()
		cancel()
		select {
		case err := <-done:
			require.NoError(t, err)
		case <-time.After(time.Minute):
			t.Fatal("the server still serves")
		}
	}
}

// SV-1
func TestServe_RejectsNonLoopbackListener(t *testing.T) {
	s, err := server.New(server.Config{Addr: loopback})
	require.NoError(t, err)
	l, err := net.Listen("tcp", "0.0.0.0:0")
	require.NoError(t, err)
	require.ErrorIs(t, s.Serve(t.Context(), l), server.ErrNotLoopback)
	_, err = l.Accept()
	require.Error(t, err, "closed")
}

// Clients that send nothing cannot use up all connections for long.
func TestServe_IdleClients(t *testing.T) {
	addr := serve(t, server.Config{Addr: loopback}, func(s *server.Server) { s.SetHeaderTimeout(50 * time.Millisecond) })
	for range 100 {
		c, err := net.Dial("tcp", addr)
		require.NoError(t, err)
		defer c.Close()
	}
	defer http.DefaultClient.CloseIdleConnections()
	require.Eventually(t, func() bool { // a busy machine may be too slow for the timeout itself
		r, err := http.Get("http://" + addr + "/healthz")
		return err == nil && r.Body.Close() == nil
	}, time.Minute, 10*time.Millisecond)
}

// SV-1
func TestPods_LeavesEnvironmentOut(t *testing.T) {
	const secret = "hunter2"
	env := []corev1.EnvVar{{Name: "DB_PASSWORD", Value: secret}}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "a", Annotations: map[string]string{corev1.LastAppliedConfigAnnotation: secret, "note": "kept"}},
		Spec: corev1.PodSpec{
			InitContainers: []corev1.Container{{Name: "i", Env: env}}, Containers: []corev1.Container{{Name: "c", Env: env}},
			EphemeralContainers: []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "e", Env: env}}},
		},
	}
	was := pod.DeepCopy()
	allow := server.AuthorizerFunc(func(context.Context, *authenticationv1.UserInfo, *authorizationv1.ResourceAttributes) (bool, error) {
		return true, nil
	})
	known := server.AuthenticatorFunc(func(*http.Request) (*authenticationv1.UserInfo, error) {
		return &authenticationv1.UserInfo{Username: "u"}, nil
	})
	for _, tt := range []struct {
		name  string
		cfg   server.Config
		tls   bool
		shown bool
	}{
		{"plain", server.Config{}, false, false},
		{"TLS alone", server.Config{}, true, false},
		{"TLS without authorization", server.Config{Authenticators: []server.Authenticator{known}}, true, false},
		{"without TLS", server.Config{Authenticators: []server.Authenticator{known}, Authorizer: allow, NodeName: "n"}, false, false},
		{"all", server.Config{Authenticators: []server.Authenticator{known}, Authorizer: allow, NodeName: "n"}, true, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tt.cfg.Addr, tt.cfg.Pods = loopback, func() []*corev1.Pod { return []*corev1.Pod{pod} }
			s, err := server.New(tt.cfg)
			require.NoError(t, err)
			r := httptest.NewRequest(http.MethodGet, "/pods", nil)
			if tt.tls {
				r.TLS = &tls.ConnectionState{}
			}
			w := httptest.NewRecorder()
			s.ServeHTTP(w, r)
			body := w.Body.String()
			require.Equal(t, tt.shown, strings.Contains(body, secret))
			require.Equal(t, 3, strings.Count(body, "DB_PASSWORD"))
			require.Contains(t, body, "kept")
			require.Equal(t, was, pod, "the caller's pod stays as it is")
		})
	}
}

func TestServer_HandlersGetAllMethods(t *testing.T) {
	s, err := server.New(server.Config{Addr: loopback, Handlers: map[string]http.Handler{
		"/restart": http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = w.Write([]byte(r.Method)) }),
	}})
	require.NoError(t, err)
	for _, method := range []string{http.MethodGet, http.MethodPost, http.MethodDelete} {
		w := httptest.NewRecorder()
		s.ServeHTTP(w, httptest.NewRequest(method, "/restart", http.NoBody))
		require.Equal(t, method, w.Body.String())
	}
}

func BenchmarkPods(b *testing.B) {
	var pods []*corev1.Pod
	for i := range 1000 {
		pods = append(pods, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("p", i), Namespace: "default"}})
	}
	s, err := server.New(server.Config{Addr: loopback, Pods: func() []*corev1.Pod { return pods }})
	require.NoError(b, err)
	b.ReportAllocs()
	for b.Loop() {
		s.ServeHTTP(discard{http.Header{}}, httptest.NewRequest(http.MethodGet, "/pods", nil))
	}
}

type discard struct{ header http.Header }

func (d discard) Header() http.Header       { return d.header }
func (discard) Write(b []byte) (int, error) { return len(b), nil }
func (discard) WriteHeader(int)             {}
