package main

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sublet-dev/agent"
)

// The kubelet's API beside the local server, of one agent.
func TestServe_KubeletAPI(t *testing.T) {
	certFile, keyFile, _ := writeCert(t, "server")
	token := filepath.Join(t.TempDir(), "token")
	require.NoError(t, os.WriteFile(token, []byte("secret"), 0o600))
	f, err := parse([]string{
		"-manifests", t.TempDir(), "-root-dir", t.TempDir(), "-pod-logs-dir", t.TempDir(), "-listen", "127.0.0.1:0", "-listen-https", "127.0.0.1:0",
		"-tls-cert-file", certFile, "-tls-private-key-file", keyFile, "-token-auth-file", token, "-ui", "-enable-profiling-handler", "-enable-system-log-handler",
		"-manifest-url-header", "Authorization:s3cret", "-manifest-url", "http://127.0.0.1:1/",
	}, io.Discard)
	require.NoError(t, err)
	log := f.logger(io.Discard)
	opts, err := options(&f, log, nil, pluginDirs{}, &lateAccounts{})
	require.NoError(t, err)
	page, err := f.debug.options(f.nodeName)
	require.NoError(t, err)
	m, err := newMetrics()
	require.NoError(t, err)
	a, err := agent.New(append(append(opts, page...), agent.WithHooks(m.hooks()))...)
	require.NoError(t, err)
	base, err := serverConfig(&f, a, m, log)
	require.NoError(t, err)
	servers, err := newServers(&f, nil, a, base, new(socketServer))
	require.NoError(t, err)
	require.Len(t, servers, 2)
	get := func(h http.Handler, path, token string, secure bool) (int, string) {
		r := httptest.NewRequest(http.MethodGet, path, nil)
		if secure {
			r.TLS = &tls.ConnectionState{}
		}
		if token != "" {
			r.Header.Set("Authorization", "Bearer "+token)
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w.Code, w.Body.String()
	}
	for _, path := range []string{"/pods", "/metrics", "/metrics/resource", "/metrics/cadvisor", "/metrics/probes", "/metrics/slis", "/problems", "/conditions", "/statusz", "/runningpods/", "/ui/", "/ui/state"} {
		for i, srv := range servers {
			code, body := get(srv, path, "secret", i == 1)
			assert.Equal(t, http.StatusOK, code, "%s: %s", path, body)
			if strings.HasPrefix(path, "/metrics") {
				requireMetrics(t, path, body)
			}
		}
		code, _ := get(servers[1], path, "", true)
		assert.Equal(t, http.StatusUnauthorized, code, path)
	}
	code, body := get(servers[1], "/healthz", "secret", true)
	require.Equal(t, http.StatusInternalServerError, code, "%s", body) // the agent does not run
	_, body = get(servers[0], "/metrics/slis", "", false)
	assert.Contains(t, body, `kubernetes_healthcheck{name="syncloop",type="healthz"} 0`)
	for _, path := range []string{"/flagz", "/configz", "/debug/pprof/", "/logs/"} {
		code, body := get(servers[1], path, "secret", true)
		assert.Equal(t, http.StatusOK, code, path)
		assert.NotContains(t, body, "s3cret", path)
		assert.Equal(t, path == "/configz", strings.Contains(body, `"kind": "KubeletConfiguration"`), path)
		code, _ = get(servers[0], path, "", false)
		assert.Equal(t, http.StatusForbidden, code, "%s without TLS", path)
	}
}

// -tls-min-version is that of all servers.
func TestRun_LimitsTLSOfAllServers(t *testing.T) {
	certFile, keyFile, _ := writeCert(t, "server")
	caFile, _, _ := writeCert(t, "client")
	parsed := func(dir, listen string, more ...string) flags {
		f, err := parse(append([]string{
			"-manifests", t.TempDir(), "-root-dir", dir, "-pod-logs-dir", filepath.Join(dir, "logs"), "-hostname-override", "n", "-listen", listen,
			"-tls-cert-file", certFile, "-tls-private-key-file", keyFile, "-client-ca-file", caFile, "-tls-min-version", "VersionTLS13",
		}, more...), io.Discard)
		require.NoError(t, err)
		return f
	}
	listen, alone, https, kubeAPI := freeAddr(t), freeAddr(t), freeAddr(t), freeAddr(t)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 2)
	for _, f := range []flags{
		parsed(t.TempDir(), listen),
		parsed(t.TempDir(), alone, "-listen-https", https, "-kube-api", kubeAPI),
	} {
		go func() { ended <- run(ctx, f, io.Discard) }()
	}
	for _, addr := range []string{listen, https, kubeAPI} {
		dial := func(version uint16) error {
			conn, err := tls.Dial("tcp", addr, &tls.Config{InsecureSkipVerify: true, MaxVersion: version}) //nolint:gosec // versions are what it is about
			if err != nil {
				return err
			}
			return conn.Close()
		}
		require.Eventually(t, func() bool { return dial(tls.VersionTLS13) == nil }, time.Minute, 20*time.Millisecond, addr)
		require.ErrorContains(t, dial(tls.VersionTLS12), "protocol version", addr)
	}
	cancel()
	require.NoError(t, errors.Join(<-ended, <-ended))
}

// namedByKubelet are metrics whose names are those of the kubelet, which Prometheus' linter
// would choose in another way.
var namedByKubelet = map[string]bool{
	"kubelet_evented_pleg_connection_error_count": true, "kubelet_evented_pleg_connection_success_count": true,
	"kubelet_certificate_manager_client_expiration_renew_errors": true, "kubelet_server_expiration_renew_errors": true,
	"kubelet_topology_manager_admission_duration_ms": true,
}

// requireMetrics checks that Prometheus' own parser and linter accept a response.
func requireMetrics(t *testing.T, path, body string) {
	t.Helper()
	parser := expfmt.NewTextParser(model.LegacyValidation)
	_, err := parser.TextToMetricFamilies(strings.NewReader(body))
	assert.NoError(t, err, path)
	problems, err := promlint.New(strings.NewReader(body)).Lint()
	assert.NoError(t, err, path)
	for _, p := range problems {
		assert.True(t, namedByKubelet[p.Metric], "%s: %s: %s", path, p.Metric, p.Text)
	}
}

// freeAddr returns an address of loopback on which nothing listens.
func freeAddr(t *testing.T) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	return l.Addr().String()
}
