package main

import (
	"crypto/tls"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

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
	servers, err := newServers(&f, nil, a, m, new(socketServer), log)
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
	for _, path := range []string{"/pods", "/metrics", "/metrics/resource", "/metrics/cadvisor", "/metrics/probes", "/problems", "/conditions", "/statusz", "/runningpods/", "/ui/", "/ui/state"} {
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
	for _, path := range []string{"/flagz", "/configz", "/debug/pprof/", "/logs/"} {
		code, body := get(servers[1], path, "secret", true)
		assert.Equal(t, http.StatusOK, code, path)
		assert.NotContains(t, body, "s3cret", path)
		assert.Equal(t, path == "/configz", strings.Contains(body, `"kind": "KubeletConfiguration"`), path)
		code, _ = get(servers[0], path, "", false)
		assert.Equal(t, http.StatusForbidden, code, "%s without TLS", path)
	}
}

// namedByKubelet are metrics whose names are those of the kubelet, which Prometheus' linter
// would choose in another way.
var namedByKubelet = map[string]bool{
	"kubelet_evented_pleg_connection_error_count": true, "kubelet_evented_pleg_connection_success_count": true,
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
