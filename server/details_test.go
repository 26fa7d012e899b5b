package server_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sublet-dev/agent/internal/logtest"
	"github.com/sublet-dev/agent/server"
)

func allowAll(context.Context, *authenticationv1.UserInfo, *authorizationv1.ResourceAttributes) (bool, error) {
	return true, nil
}

// The name of a check is part of a path.
func TestNew_NamesOfChecks(t *testing.T) {
	healthy := func() error { return nil }
	for r := rune(1); r < 256; r++ {
		valid := strings.ContainsRune("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.", r)
		_, err := server.New(server.Config{Addr: loopback, Checks: []server.HealthCheck{{Name: "x" + string(r), Check: healthy}}})
		assert.Equal(t, valid, err == nil, "%q: %v", r, err)
	}
	for _, checks := range [][]server.HealthCheck{{{Check: healthy}}, {{Name: "a"}}, {{Name: "a", Check: healthy}, {Name: "a", Check: healthy}}, {{Name: "log", Check: healthy}}} {
		_, err := server.New(server.Config{Addr: loopback, Checks: checks})
		require.Error(t, err)
	}
}

func TestNew_RejectsInvalidHandlersAndLimits(t *testing.T) {
	for name, cfg := range map[string]server.Config{
		"relative path":        {Handlers: map[string]http.Handler{"x": http.NotFoundHandler()}},
		"nil handler":          {Handlers: map[string]http.Handler{"/x": nil}},
		"negative connections": {MaxConnections: -1},
		"negative streams":     {MaxStreams: -1},
		"too many streams":     {MaxStreams: 256},
	} {
		cfg.Addr = loopback
		_, err := server.New(cfg)
		require.Error(t, err, name)
	}
	for _, cfg := range []server.Config{{MaxConnections: 1}, {MaxStreams: 255}} {
		cfg.Addr = loopback
		_, err := server.New(cfg)
		require.NoError(t, err)
	}
}

// Clients of a unix socket are trusted if Config says so, others never by it. SV-1
func TestServer_TrustSocketClients(t *testing.T) {
	n := newFakeNode(t)
	for _, tt := range []struct {
		name  string
		trust bool
		addr  net.Addr
		want  int
	}{
		{"trusted socket", true, &net.UnixAddr{Net: "unix"}, 200},
		{"socket", false, &net.UnixAddr{Net: "unix"}, 403},
		{"port", true, &net.TCPAddr{}, 403},
		{"unknown", true, nil, 403},
	} {
		cfg := n.config()
		cfg.TrustSocketClients = tt.trust
		s, err := server.New(cfg)
		require.NoError(t, err)
		ctx := t.Context()
		if tt.addr != nil {
			ctx = context.WithValue(ctx, http.LocalAddrContextKey, tt.addr)
		}
		w := httptest.NewRecorder()
		s.ServeHTTP(w, httptest.NewRequestWithContext(ctx, http.MethodGet, logPath, nil))
		assert.Equal(t, tt.want, w.Code, tt.name)
	}
}

// Where every client is anonymous, none enters a container.
func TestServer_AnonymousAloneIsNotTrusted(t *testing.T) {
	cfg := newFakeNode(t).config()
	cfg.Anonymous, cfg.Authorizer = true, server.AuthorizerFunc(allowAll)
	s, err := server.New(cfg)
	require.NoError(t, err)
	r := httptest.NewRequest(http.MethodGet, logPath, nil)
	r.TLS = &tls.ConnectionState{}
	w := httptest.NewRecorder()
	s.ServeHTTP(w, r)
	assert.Equal(t, http.StatusForbidden, w.Code)
}

func TestServer_GroupOfAuthenticatedUsers(t *testing.T) {
	for _, tt := range []struct{ user, want authenticationv1.UserInfo }{
		{authenticationv1.UserInfo{Username: "u", Groups: []string{"system:authenticated", "g"}}, authenticationv1.UserInfo{Username: "u", Groups: []string{"system:authenticated", "g"}}},
		{authenticationv1.UserInfo{Username: "system:anonymous"}, authenticationv1.UserInfo{Username: "system:anonymous"}},
	} {
		var got authenticationv1.UserInfo
		s, err := server.New(server.Config{
			Addr: loopback, NodeName: "n",
			Authenticators: []server.Authenticator{server.AuthenticatorFunc(func(*http.Request) (*authenticationv1.UserInfo, error) { return &tt.user, nil })},
			Authorizer: server.AuthorizerFunc(func(_ context.Context, u *authenticationv1.UserInfo, _ *authorizationv1.ResourceAttributes) (bool, error) {
				got = *u
				return true, nil
			}),
		})
		require.NoError(t, err)
		code, _ := get(t, s, "/healthz")
		require.Equal(t, http.StatusOK, code)
		assert.Equal(t, tt.want, got)
	}
}

// Of two pods with one name it is the one that is not being deleted.
func TestServer_PodThatIsReplaced(t *testing.T) {
	deleted, next := testPod(), testPod()
	deleted.DeletionTimestamp, next.UID = &metav1.Time{Time: time.Now()}, "uid-2"
	for _, pods := range [][]*corev1.Pod{{deleted, next}, {next, deleted}} {
		n := serveSecure(t, func(cfg *server.Config) { cfg.Pods = func() []*corev1.Pod { return pods }; cfg.Commands = uids{} })
		for path, want := range map[string]string{"/run/default/web/app?cmd=x": "uid-2", "/run/default/web/uid-1/app?cmd=x": "uid-1"} {
			status, header, body := n.do(t, n.client(t), http.MethodPost, path, "good")
			assert.Equal(t, http.StatusOK, status)
			assert.Equal(t, want, body)
			assert.Equal(t, "nosniff", header.Get("X-Content-Type-Options"))
		}
	}
}

type uids struct{}

func (uids) RunCommand(_ context.Context, pod *corev1.Pod, _ string, _ []string) ([]byte, error) {
	return []byte(pod.UID), nil
}

// SV-14
func TestStreams_Parameters(t *testing.T) {
	n := serveSecure(t)
	c := n.client(t)
	for query, want := range map[string]string{
		"?input=1": "Upgrade request required\n", "?output=1": "Upgrade request required\n", "?error=1": "Upgrade request required\n",
		"?error=1&tty=1": "you must specify at least 1 of stdin, stdout, stderr\n", "": "you must specify at least 1 of stdin, stdout, stderr\n",
	} {
		for _, path := range []string{"/attach/default/web/app", "/exec/default/web/app"} {
			status, _, body := n.do(t, c, http.MethodPost, path+query, "good")
			assert.Equal(t, http.StatusBadRequest, status)
			assert.Equal(t, want, body, query)
		}
	}
	webSocket := func() http.Header {
		return http.Header{
			"Upgrade": {"websocket"}, "Sec-Websocket-Version": {"13"}, "Sec-Websocket-Key": {"AAAAAAAAAAAAAAAAAAAAAA=="}, "Origin": {"https://" + n.addr},
			"Sec-Websocket-Protocol": {"v4.channel.k8s.io"},
		}
	}
	status, _ := n.upgradeRequest(t, "/portForward/default/web?port=70000", webSocket())
	assert.Equal(t, http.StatusBadRequest, status)
	status, _ = n.upgradeRequest(t, "/portForward/default/web?port=80&port=65535", http.Header{"Upgrade": {"websocket"}})
	assert.NotEqual(t, http.StatusSwitchingProtocols, status)
	assert.Contains(t, n.calls, fmt.Sprint("port-forward web ", []int{80, 65535}))
	// An API server joins the ports that its client names.
	status, _ = n.upgradeRequest(t, "/portForward/default/web?port=80,443&port=8080", http.Header{"Upgrade": {"websocket"}})
	assert.NotEqual(t, http.StatusSwitchingProtocols, status)
	assert.Contains(t, n.calls, fmt.Sprint("port-forward web ", []int{80, 443, 8080}))
	for _, port := range []string{"80,", ",80", "80,0", "80;443"} {
		status, _ = n.upgradeRequest(t, "/portForward/default/web?port="+url.QueryEscape(port), webSocket())
		assert.Equal(t, http.StatusBadRequest, status, port)
	}
}

// A connection above the limit waits for one that ends. SV-6
func TestServe_LimitsConnections(t *testing.T) {
	n := serveSecure(t, func(cfg *server.Config) { cfg.MaxConnections = 1 })
	first := n.client(t)
	status, _, _ := n.do(t, first, http.MethodGet, "/pods", "good")
	require.Equal(t, http.StatusOK, status)
	answered := make(chan error, 1)
	go func() {
		c := &http.Client{Transport: &http.Transport{TLSClientConfig: n.tls(), DisableKeepAlives: true}}
		resp, err := c.Get("https://" + n.addr + "/healthz")
		if err == nil {
			err = resp.Body.Close()
		}
		answered <- err
	}()
	select {
	case <-answered:
		t.Fatal("two connections")
	case <-time.After(100 * time.Millisecond):
	}
	first.CloseIdleConnections()
	require.NoError(t, <-answered)
}

// The output of a command that fails is for the client, but neither its content nor its size for logs.
func TestServer_OutputOfAFailedCommandIsNotLogged(t *testing.T) {
	var logged logtest.Buffer
	n := serveSecure(t, func(cfg *server.Config) {
		cfg.Logger = slog.New(slog.NewTextHandler(&logged, &slog.HandlerOptions{Level: slog.LevelDebug}))
	})
	status, _, body := n.do(t, n.client(t), http.MethodPost, "/run/default/web/app?cmd=false", "good")
	assert.Equal(t, http.StatusInternalServerError, status)
	assert.Equal(t, "exit code 1\noutput\n", body)
	assert.Contains(t, logged.String(), "request failed")
	assert.Contains(t, logged.String(), "exit code 1")
	assert.NotContains(t, logged.String(), "output")
}
