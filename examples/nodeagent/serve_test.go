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
		"-tls-cert-file", certFile, "-tls-private-key-file", keyFile, "-token-auth-file", token,
	}, io.Discard)
	require.NoError(t, err)
	log := f.logger(io.Discard)
	opts, err := options(f, log, nil)
	require.NoError(t, err)
	m, err := newMetrics()
	require.NoError(t, err)
	a, err := agent.New(append(opts, agent.WithHooks(m.hooks()))...)
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
	for _, path := range []string{"/pods", "/metrics", "/metrics/resource", "/metrics/cadvisor", "/metrics/probes", "/problems", "/conditions", "/statusz"} {
		for i, srv := range servers {
			code, body := get(srv, path, "secret", i == 1)
			assert.Equal(t, http.StatusOK, code, "%s: %s", path, body)
			if strings.HasPrefix(path, "/metrics") {
				parser := expfmt.NewTextParser(model.LegacyValidation)
				_, err := parser.TextToMetricFamilies(strings.NewReader(body))
				assert.NoError(t, err, path)
			}
		}
		code, _ := get(servers[1], path, "", true)
		assert.Equal(t, http.StatusUnauthorized, code, path)
	}
}
