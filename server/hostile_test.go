package server_test

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
)

// raw sends a request as it is, with a token, and returns the status and the body of the answer; 0: there was none.
func (n *secureNode) raw(t *testing.T, method, target, header string) (int, string) {
	t.Helper()
	conn, err := (&tls.Dialer{Config: n.tls()}).DialContext(t.Context(), "tcp", n.addr)
	require.NoError(t, err)
	defer conn.Close()
	require.NoError(t, conn.SetDeadline(time.Now().Add(time.Minute)))
	_, err = fmt.Fprintf(conn, "%s %s HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer good\r\n%s\r\n", method, target, header)
	require.NoError(t, err)
	resp, err := http.ReadResponse(bufio.NewReader(conn), &http.Request{Method: method})
	if err != nil {
		return 0, ""
	}
	defer resp.Body.Close()
	b, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<20)) // the server may keep the connection: the length says where a body ends
	return resp.StatusCode, string(b)
}

// Whatever a request looks like, a client that may read health and metrics gets nothing else, and reaches no container. SV-1
func TestServe_HostileRequests(t *testing.T) {
	n := serveSecure(t)
	n.allow = func(_ *authenticationv1.UserInfo, a *authorizationv1.ResourceAttributes) (bool, error) {
		return a.Verb == "get" && (a.Subresource == "metrics" || a.Subresource == "healthz"), nil
	}
	const shell = "default/web/app?output=1&command=cat"
	targets := []string{"*", "/", "//", "/%00", "/configz%00", "/configz%20", "/configz;/metrics", "/metrics;/../configz", "/metrics/..;/configz", "/configz#/metrics", "/configz?/metrics"}
	plain := []string{"configz", "flagz", "pods", "exec/" + shell, "attach/" + shell, "run/default/web/app?cmd=ls", "containerLogs/default/web/app", "checkpoint/default/web/app", "portForward/default/web"}
	for _, path := range plain {
		targets = append(targets, "//"+path, "///"+path, "/./"+path, "/metrics/../"+path, "/metrics/%2e%2e/"+path, "/metrics%2f..%2f"+path, "/metrics/..%2f"+path,
			"/healthz/ping/../../"+path, `/metrics/..\`+path, "/%"+fmt.Sprintf("%x", path[0])+path[1:], "http://127.0.0.1/"+path, "https://metrics/"+path, "http://127.0.0.1//"+path, strings.ToUpper("/"+path[:3])+path[3:])
	}
	methods := []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT", "get", "GETS"}
	headers := map[string]string{
		"none": "", "override": "X-HTTP-Method-Override: GET\r\nX-Original-URL: /configz\r\nX-Rewrite-URL: /configz\r\n",
		"front proxy": "X-Remote-User: admin\r\nX-Remote-Group: system:masters\r\nImpersonate-User: admin\r\n",
		"websocket":   "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Protocol: v5.channel.k8s.io\r\n",
		"spdy":        "Connection: Upgrade\r\nUpgrade: SPDY/3.1\r\nX-Stream-Protocol-Version: v4.channel.k8s.io\r\n",
		"smuggled":    "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n",
	}
	check := func(method, target, name string) {
		status, body := n.raw(t, method, target, headers[name])
		switch {
		case status == http.StatusOK:
			assert.Contains(t, []string{"", "ok", "up 1\n"}, body, "%s %s with %s", method, target, name)
		case status != 0:
			assert.Contains(t, []int{307, 400, 403, 404, 405, 421, 501}, status, "%s %s with %s: %s", method, target, name, body)
		}
		for _, secret := range []string{"rootDir", "node=n", "uid-1"} {
			assert.NotContains(t, body, secret, "%s %s with %s", method, target, name)
		}
	}
	for _, target := range targets {
		check(http.MethodGet, target, "none")
		check(http.MethodPost, target, "none")
	}
	for _, path := range plain {
		for name := range headers {
			check(http.MethodGet, "/"+path, name)
		}
		for _, method := range methods {
			check(method, "/"+path, "none")
		}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, call := range n.calls {
		assert.True(t, strings.HasPrefix(call, "authorize "), call)
	}
}

// Answers to hostile parameters of a client with all rights are those of a kubelet, and nothing panics.
func TestServe_HostileParameters(t *testing.T) {
	n := serveSecure(t)
	c := n.client(t)
	long := strings.Repeat("9", 1000)
	for request, want := range map[string]int{
		"GET " + logPath + "?tailLines=9223372036854775807":               200,
		"GET " + logPath + "?tailLines=9223372036854775808":               400,
		"GET " + logPath + "?tailLines=" + long:                           400,
		"GET " + logPath + "?tailLines=":                                  400,
		"GET " + logPath + "?tailLines=1e3":                               400,
		"GET " + logPath + "?tailLines=1&tailLines=x":                     200, // the first one counts
		"GET " + logPath + "?limitBytes=-9223372036854775808":             422,
		"GET " + logPath + "?sinceSeconds=9223372036854775807":            200,
		"GET " + logPath + "?sinceTime=9999-12-31T23:59:59Z":              200,
		"GET " + logPath + "?sinceTime=0000-01-01T00:00:00Z":              200,
		"GET " + logPath + "?sinceTime=10000-01-01T00:00:00Z":             400,
		"GET " + logPath + "?stream=" + long:                              422,
		"GET " + logPath + "?a;b=%zz&follow=false":                        200,
		"GET /containerLogs/default/web/" + long:                          404,
		"GET /containerLogs/default/web/a%2fb":                            404,
		"GET /containerLogs/default/web/%00":                              404,
		"GET /containerLogs/%2e%2e/%2e%2e/%2e%2e":                         404,
		"GET /stats/summary?only_cpu_and_memory=" + long:                  200,
		"GET /stats/summary?a;b":                                          400,
		"GET /healthz?exclude=" + long + "&exclude=&verbose=%00":          200,
		"GET /portForward/default/web?port=" + long:                       400,
		"GET /exec/default/web/app?output=1&output=0&command=cat&tty=yes": 400, // no upgrade
		"GET /exec/default/web/app?command=cat&output=2":                  400,
		"POST /checkpoint/default/web/app?timeout=-1":                     400,
		"POST /checkpoint/default/web/app?timeout=2147483648":             400,
		"POST /checkpoint/default/web/app?timeout=2147483647":             200,
		"POST /checkpoint/default/web/app?timeout=1.5":                    400,
		"POST /checkpoint/default/web/app?timeout=":                       400,
		"POST /run/default/web/app?cmd=%00%ff%0a":                         200,
		"POST /run/default/web/app":                                       200, // the empty word
	} {
		method, path, _ := strings.Cut(request, " ")
		status, _, body := n.do(t, c, method, path, "good")
		assert.Equal(t, want, status, "%.200s: %.200s", request, body)
	}
	status, _, body := n.do(t, c, http.MethodGet, "/healthz", "good")
	assert.Equal(t, http.StatusOK, status, body)
}
