package server_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"

	"github.com/sublet-dev/agent/server"
)

// paths are all that a server serves, with the right that each takes.
var paths = []struct {
	method, path string
	status       int // for who has the right
	verb         string
	subresources []string
}{
	{"GET", "/healthz", 200, "get", []string{"healthz", "proxy"}},
	{"GET", "/healthz/ping", 200, "get", []string{"healthz", "proxy"}},
	{"GET", "/healthz/log", 200, "get", []string{"healthz", "proxy"}},
	{"GET", "/healthz/syncloop", 200, "get", []string{"healthz", "proxy"}},
	{"HEAD", "/healthz", 200, "get", []string{"healthz", "proxy"}},
	{"GET", "/pods", 200, "get", []string{"pods", "proxy"}},
	{"GET", "/runningpods/", 200, "get", []string{"pods", "proxy"}},
	{"GET", "/configz", 200, "get", []string{"configz", "proxy"}},
	{"GET", "/flagz", 200, "get", []string{"configz"}},
	{"GET", "/statusz", 200, "get", []string{"statusz"}},
	{"GET", "/stats/summary", 200, "get", []string{"stats"}},
	{"POST", "/stats/summary", 200, "create", []string{"stats"}},
	{"GET", "/metrics", 200, "get", []string{"metrics"}},
	{"GET", "/logs/", 405, "get", []string{"log"}},
	{"GET", "/problems", 200, "get", []string{"proxy"}},
	{"GET", "/containerLogs/default/web/app", 200, "get", []string{"proxy"}},
	{"POST", "/run/default/web/app?cmd=true", 200, "create", []string{"proxy"}},
	{"POST", "/run/default/web/uid-1/app?cmd=true", 200, "create", []string{"proxy"}},
	{"GET", "/exec/default/web/app?output=1&command=cat", 400, "create", []string{"proxy"}}, // no upgrade
	{"POST", "/exec/default/web/app?output=1&command=cat", 400, "create", []string{"proxy"}},
	{"POST", "/exec/default/web/uid-1/app?output=1&command=cat", 400, "create", []string{"proxy"}},
	{"GET", "/attach/default/web/app?output=1", 400, "create", []string{"proxy"}},
	{"POST", "/attach/default/web/uid-1/app?output=1", 400, "create", []string{"proxy"}},
	{"GET", "/portForward/default/web", 400, "create", []string{"proxy"}},
	{"POST", "/portForward/default/web/uid-1", 400, "create", []string{"proxy"}},
	{"POST", "/checkpoint/default/web/app", 200, "create", []string{"checkpoint"}},
	{"GET", "/ui", 307, "get", []string{"pods", "proxy"}},
	{"GET", "/ui/", 200, "get", []string{"pods", "proxy"}},
	{"GET", "/ui/state", 200, "get", []string{"pods", "proxy"}},
	{"GET", "/ui/events", 200, "get", []string{"pods", "proxy"}},
	{"GET", "/ui/pods/uid-1", 200, "get", []string{"pods", "proxy"}},
	{"POST", "/ui/", 405, "create", []string{"proxy"}},
	{"GET", "/debug/pprof/", 405, "get", []string{"proxy"}},
	{"GET", "/debug/pprof/profile", 405, "get", []string{"proxy"}},
	{"GET", "/nowhere", 404, "get", []string{"proxy"}},
	{"PUT", "/pods", 405, "update", []string{"proxy"}},
	{"DELETE", "/pods", 405, "delete", []string{"proxy"}},
	{"PATCH", "/pods", 405, "patch", []string{"proxy"}},
	{"OPTIONS", "/pods", 405, "unknown", []string{"proxy"}},
}

// Each path, for each kind of client. SV-1
func TestServer_AuthorizationTable(t *testing.T) {
	n := serveSecure(t)
	stranger := newAuthority(t, "stranger")
	wrongUsage, err := tls.X509KeyPair(n.ca.sign(t, x509.ExtKeyUsageServerAuth, "apiserver"))
	require.NoError(t, err)
	clients := []struct {
		name   string
		client *http.Client
		token  string
		status int // 0: that of the path
	}{
		{"anonymous", n.client(t), "", 401},
		{"wrong token", n.client(t), "wrong", 401},
		{"token without rights", n.client(t), "powerless", 403},
		{"token with rights", n.client(t), "good", 0},
		{"client certificate", n.client(t, n.ca.client(t, "apiserver", "system:masters")), "", 0},
		{"client certificate without rights", n.client(t, n.ca.client(t, "someone")), "", 403},
		{"certificate of a stranger", n.client(t, stranger.client(t, "apiserver")), "", 401},
		{"certificate of a stranger, token with rights", n.client(t, stranger.client(t, "apiserver")), "good", 0},
		{"certificate of a server", n.client(t, wrongUsage), "", 401},
	}
	for _, p := range paths {
		for _, c := range clients {
			status, header, body := n.do(t, c.client, p.method, p.path, c.token)
			want := c.status
			if want == 0 {
				want = p.status
			}
			assert.Equal(t, want, status, "%s %s by %s: %s", p.method, p.path, c.name, body)
			if want == http.StatusUnauthorized && p.method != http.MethodHead {
				assert.Equal(t, "Unauthorized\n", body)
				assert.Equal(t, "Bearer", header.Get("WWW-Authenticate"))
			}
			if want == http.StatusForbidden && p.method != http.MethodHead {
				assert.Contains(t, body, fmt.Sprintf("verb=%s, resource=nodes, subresource(s)=%v", p.verb, p.subresources))
			}
		}
	}
}

// One right of those that a path accepts is enough, and each is asked for. SV-1
func TestServer_RightsOfPaths(t *testing.T) {
	n := serveSecure(t)
	c := n.client(t)
	for _, p := range paths {
		for _, granted := range p.subresources {
			var asked []authorizationv1.ResourceAttributes
			n.allow = func(_ *authenticationv1.UserInfo, a *authorizationv1.ResourceAttributes) (bool, error) {
				asked = append(asked, *a)
				return a.Subresource == granted && a.Verb == p.verb, nil
			}
			status, _, _ := n.do(t, c, p.method, p.path, "good")
			assert.Equal(t, p.status, status, "%s %s with %s", p.method, p.path, granted)
			i := slices.Index(p.subresources, granted)
			require.Len(t, asked, i+1, p.path)
			assert.Equal(t, authorizationv1.ResourceAttributes{Verb: p.verb, Version: "v1", Resource: "nodes", Subresource: granted, Name: "node-1"}, asked[i])
		}
	}
}

// The right to one path is not a right to another that is spelled with its help. SV-1
func TestServer_SpellingOfPaths(t *testing.T) {
	n := serveSecure(t)
	n.allow = func(_ *authenticationv1.UserInfo, a *authorizationv1.ResourceAttributes) (bool, error) {
		return a.Subresource == "metrics", nil
	}
	c := n.client(t)
	for _, path := range []string{
		"/metrics/../containerLogs/default/web/app", "/metrics/..%2fcontainerLogs/default/web/app", "//containerLogs/default/web/app",
		"/metrics/%2e%2e/pods", "/./pods", "/metrics/x", "/metricsx", "/Metrics", "/stats/summary/../../metrics/../pods",
	} {
		status, _, _ := n.do(t, c, http.MethodGet, path, "good")
		assert.Equal(t, http.StatusForbidden, status, path)
	}
	assert.NotContains(t, strings.Join(n.calls, "\n"), "log ")
}

// A webhook that is down denies. SV-1
func TestServer_DeniesWhenAuthorizationFails(t *testing.T) {
	for name, tc := range map[string]struct {
		allowed bool
		err     error
		status  int
	}{
		"failed": {true, errors.New("connection refused"), http.StatusInternalServerError},
		"denied": {false, nil, http.StatusForbidden},
	} {
		t.Run(name, func(t *testing.T) {
			n := serveSecure(t)
			n.allow = func(*authenticationv1.UserInfo, *authorizationv1.ResourceAttributes) (bool, error) {
				return tc.allowed, tc.err
			}
			for token, c := range map[string]*http.Client{"good": n.client(t), "": n.client(t, n.ca.client(t, "apiserver", "system:masters"))} {
				for _, p := range paths {
					status, _, body := n.do(t, c, p.method, p.path, token)
					assert.Equal(t, tc.status, status, p.path)
					assert.NotContains(t, body, "connection refused", "what failed is for the log")
					assert.LessOrEqual(t, strings.Count(body, "\n"), 1, "%s: nothing follows the refusal: %s", p.path, body)
				}
			}
			n.mu.Lock()
			defer n.mu.Unlock()
			for _, call := range n.calls {
				assert.True(t, strings.HasPrefix(call, "authorize "), call)
			}
		})
	}
}

// SV-1
func TestServer_Anonymous(t *testing.T) {
	n := serveSecure(t, func(cfg *server.Config) { cfg.Anonymous = true })
	var groups []string
	n.allow = func(user *authenticationv1.UserInfo, a *authorizationv1.ResourceAttributes) (bool, error) {
		groups = user.Groups
		return user.Username == "system:anonymous" && a.Subresource == "healthz", nil
	}
	c := n.client(t)
	status, _, _ := n.do(t, c, http.MethodGet, "/healthz", "")
	assert.Equal(t, http.StatusOK, status)
	assert.Equal(t, []string{"system:unauthenticated"}, groups)
	status, _, _ = n.do(t, c, http.MethodGet, "/pods", "")
	assert.Equal(t, http.StatusForbidden, status)
	status, _, _ = n.do(t, c, http.MethodGet, "/healthz", "wrong")
	assert.Equal(t, http.StatusUnauthorized, status, "a wrong token is not anonymous")
}

func TestServer_GroupsOfUsers(t *testing.T) {
	n := serveSecure(t)
	var user authenticationv1.UserInfo
	n.allow = func(u *authenticationv1.UserInfo, _ *authorizationv1.ResourceAttributes) (bool, error) {
		user = *u
		return true, nil
	}
	status, _, _ := n.do(t, n.client(t, n.ca.client(t, "apiserver", "a", "b")), http.MethodGet, "/healthz", "")
	require.Equal(t, http.StatusOK, status)
	assert.Equal(t, "apiserver", user.Username)
	assert.ElementsMatch(t, []string{"a", "b", "system:authenticated"}, user.Groups)
	status, _, _ = n.do(t, n.client(t, n.ca.client(t, "")), http.MethodGet, "/healthz", "")
	assert.Equal(t, http.StatusUnauthorized, status, "a certificate without a name is nobody")
}

// Without TLS or without an Authorizer nothing can be entered, read or changed in a
// container, for any client. SV-1
func TestServer_SensitivePathsNeedTLSAndAuthorization(t *testing.T) {
	sensitive := []string{"/containerLogs", "/run/", "/exec", "/attach", "/portForward", "/checkpoint", "/configz", "/flagz"}
	n := newFakeNode(t)
	allow := server.AuthorizerFunc(func(context.Context, *authenticationv1.UserInfo, *authorizationv1.ResourceAttributes) (bool, error) {
		return true, nil
	})
	plain, authorized := n.config(), n.config()
	authorized.Authenticators, authorized.Authorizer = []server.Authenticator{server.AuthenticatorFunc(tokens)}, allow
	for name, cfg := range map[string]server.Config{"plain": plain, "authorized without TLS": authorized} {
		addr := serve(t, cfg)
		for _, p := range paths {
			r, err := http.NewRequestWithContext(t.Context(), p.method, "http://"+addr+p.path, http.NoBody)
			require.NoError(t, err)
			r.Header.Set("Authorization", "Bearer good")
			resp, err := http.DefaultTransport.RoundTrip(r) // redirects are not followed
			require.NoError(t, err)
			require.NoError(t, resp.Body.Close())
			want := p.status
			if slices.ContainsFunc(sensitive, func(s string) bool { return strings.HasPrefix(p.path, s) }) {
				want = http.StatusForbidden
			}
			assert.Equal(t, want, resp.StatusCode, "%s: %s %s", name, p.method, p.path)
		}
	}
	http.DefaultClient.CloseIdleConnections()
	assert.Empty(t, n.calls)
}

func TestNew_RejectsContradictions(t *testing.T) {
	allow := server.AuthorizerFunc(func(context.Context, *authenticationv1.UserInfo, *authorizationv1.ResourceAttributes) (bool, error) {
		return true, nil
	})
	users := []server.Authenticator{server.AuthenticatorFunc(tokens)}
	healthy := func() error { return nil }
	for want, cfg := range map[string]server.Config{
		"Config.Authenticators: one is nil":            {Authenticators: []server.Authenticator{nil}},
		"Config.Authorizer needs Authenticators":       {Authorizer: allow, NodeName: "n"},
		"Config.Authorizer needs NodeName":             {Authorizer: allow, Authenticators: users},
		"Config.Anonymous needs an Authorizer":         {Anonymous: true, Authenticators: users},
		"must not be negative":                         {StreamIdleTimeout: -1},
		"MaxStreams: must be less than MaxConnections": {MaxStreams: 9, MaxConnections: 9},
		`health check "a/b": Name must consist`:        {Checks: []server.HealthCheck{{Name: "a/b", Check: healthy}}},
		`health check "ping": name already used`:       {Checks: []server.HealthCheck{{Name: "ping", Check: healthy}}},
		`handler "/exec/x": path already used`:         {Handlers: map[string]http.Handler{"/exec/x": http.NotFoundHandler()}},
		`handler "/stats/summary": path already used`:  {Handlers: map[string]http.Handler{"/stats/summary": http.NotFoundHandler()}},
	} {
		cfg.Addr = loopback
		_, err := server.New(cfg)
		require.ErrorContains(t, err, want)
	}
}

// A WebSocket can have its bearer token among its subprotocols, as with a kubelet. The runtime does not get it.
func TestServer_BearerTokenAsSubprotocol(t *testing.T) {
	passed := make(chan http.Header, 1)
	backend := serve(t, server.Config{Addr: loopback, Handlers: map[string]http.Handler{"/x": http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		passed <- r.Header
		w.WriteHeader(http.StatusTeapot)
	})}})
	n := serveSecure(t, func(cfg *server.Config) { cfg.Streams = &upstream{url: "http://" + backend + "/x"} })
	bearer := func(token string) string {
		return "base64url.bearer.authorization.k8s.io." + base64.RawURLEncoding.EncodeToString([]byte(token))
	}
	for name, tt := range map[string]struct {
		protocols []string
		certs     []tls.Certificate
		status    int
		passed    string
	}{
		"before the others":         {[]string{bearer("good") + ", v4.channel.k8s.io"}, nil, http.StatusTeapot, "v4.channel.k8s.io"},
		"after the others":          {[]string{"v4.channel.k8s.io,channel.k8s.io", bearer("good")}, nil, http.StatusTeapot, "v4.channel.k8s.io,channel.k8s.io"},
		"beside a certificate":      {[]string{bearer("wrong"), "v4.channel.k8s.io"}, []tls.Certificate{n.ca.client(t, "apiserver", "system:masters")}, http.StatusTeapot, "v4.channel.k8s.io"},
		"without rights":            {[]string{bearer("powerless"), "v4.channel.k8s.io"}, nil, http.StatusForbidden, ""},
		"wrong":                     {[]string{bearer("wrong"), "v4.channel.k8s.io"}, nil, http.StatusUnauthorized, ""},
		"empty":                     {[]string{bearer(""), "v4.channel.k8s.io"}, nil, http.StatusUnauthorized, ""},
		"two":                       {[]string{bearer("good"), bearer("good"), "v4.channel.k8s.io"}, nil, http.StatusUnauthorized, ""},
		"no other subprotocol":      {[]string{bearer("good")}, nil, http.StatusUnauthorized, ""},
		"no base64":                 {[]string{"base64url.bearer.authorization.k8s.io.=", "v4.channel.k8s.io"}, nil, http.StatusUnauthorized, ""},
		"no text":                   {[]string{bearer("\xff"), "v4.channel.k8s.io"}, nil, http.StatusUnauthorized, ""},
		"invalid and a certificate": {[]string{"base64url.bearer.authorization.k8s.io.=", "v4.channel.k8s.io"}, []tls.Certificate{n.ca.client(t, "apiserver", "system:masters")}, http.StatusUnauthorized, ""},
	} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+n.addr+"/exec/default/web/app?output=1&command=x", http.NoBody)
		require.NoError(t, err)
		r.Header = http.Header{"Connection": {"Upgrade"}, "Upgrade": {"websocket"}, "Sec-Websocket-Protocol": tt.protocols}
		resp, err := n.client(t, tt.certs...).Do(r)
		require.NoError(t, err, name)
		require.NoError(t, resp.Body.Close())
		assert.Equal(t, tt.status, resp.StatusCode, name)
		if tt.passed != "" && resp.StatusCode == tt.status {
			header := <-passed
			assert.Equal(t, []string{tt.passed}, header["Sec-Websocket-Protocol"], name)
			assert.NotContains(t, header, "Authorization", name)
		}
	}
	// Without a WebSocket the header means nothing.
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+n.addr+"/healthz", http.NoBody)
	require.NoError(t, err)
	r.Header.Set("Sec-Websocket-Protocol", bearer("good")+",v4.channel.k8s.io")
	resp, err := n.client(t).Do(r)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	assert.Equal(t, http.StatusUnauthorized, resp.StatusCode)
}
