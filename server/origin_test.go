package server_test

import (
	"maps"
	"net/http"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sublet-dev/agent/server"
)

type kubeFunc func(w http.ResponseWriter, r *server.KubeRequest)

func (f kubeFunc) ServeKube(w http.ResponseWriter, r *server.KubeRequest) { f(w, r) }

// A page elsewhere has the browser send the user's certificate, and can neither change
// something nor enter a container with it.
func TestServer_RequestsOfWebPages(t *testing.T) {
	n := serveSecure(t, func(cfg *server.Config) {
		cfg.Profiling = true
		cfg.KubeAPI = kubeFunc(func(w http.ResponseWriter, _ *server.KubeRequest) { w.WriteHeader(http.StatusCreated) })
	})
	c := n.client(t, n.ca.client(t, "apiserver"))
	webSocket := http.Header{
		"Connection": {"Upgrade"}, "Upgrade": {"websocket"}, "Sec-Websocket-Version": {"13"}, "Sec-Websocket-Key": {"AAAAAAAAAAAAAAAAAAAAAA=="},
		"Sec-Websocket-Protocol": {"v4.channel.k8s.io"},
	}
	acts := []struct {
		method, path string
		header       http.Header
		allowed      int
	}{
		{http.MethodGet, "/exec/default/web/app?output=1&command=x", webSocket, http.StatusSwitchingProtocols},
		{http.MethodGet, "/attach/default/web/app?output=1", webSocket, http.StatusSwitchingProtocols},
		{http.MethodGet, "/portForward/default/web?port=80", webSocket, http.StatusSwitchingProtocols},
		{http.MethodPost, "/run/default/web/app?cmd=true", nil, http.StatusOK},
		{http.MethodPost, "/checkpoint/default/web/app", nil, http.StatusOK},
		{http.MethodPost, "/api/v1/namespaces/default/pods", nil, http.StatusCreated},
		{http.MethodDelete, "/api/v1/namespaces/default/pods/web", nil, http.StatusCreated},
		{http.MethodGet, "/api/v1/namespaces/default/pods/web/exec?command=x", webSocket, http.StatusCreated},
		{http.MethodGet, "/debug/pprof/profile?seconds=0.001", nil, http.StatusOK},
		{http.MethodGet, "/debug/pprof/trace?seconds=0.001", nil, http.StatusOK},
	}
	reads := []string{"/pods", "/healthz", "/ui/", "/api/v1/pods"}
	status := func(method, path string, headers ...http.Header) int {
		r, err := http.NewRequestWithContext(t.Context(), method, "https://"+n.addr+path, http.NoBody)
		require.NoError(t, err)
		for _, h := range headers {
			maps.Copy(r.Header, h)
		}
		resp, err := c.Do(r)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		return resp.StatusCode
	}
	own, evil := []string{"https://" + n.addr}, []string{"https://evil.example"}
	for name, tt := range map[string]struct {
		header  http.Header
		foreign bool
	}{
		"no browser":              {http.Header{}, false},
		"the page of the node":    {http.Header{"Origin": own, "Sec-Fetch-Site": {"same-origin"}}, false},
		"the same, old browser":   {http.Header{"Origin": own}, false},
		"entered by the user":     {http.Header{"Sec-Fetch-Site": {"none"}}, false},
		"proxy of an API server":  {http.Header{"Origin": evil, "Sec-Fetch-Site": {"cross-site"}, "X-Forwarded-For": {"192.0.2.1"}}, false},
		"page elsewhere":          {http.Header{"Origin": evil, "Sec-Fetch-Site": {"cross-site"}}, true},
		"page of a sibling":       {http.Header{"Origin": evil, "Sec-Fetch-Site": {"same-site"}}, true},
		"page without an Origin":  {http.Header{"Sec-Fetch-Site": {"cross-site"}}, true},
		"unknown relation":        {http.Header{"Origin": own, "Sec-Fetch-Site": {"unknown"}}, true},
		"old browser":             {http.Header{"Origin": evil}, true},
		"old browser, sandbox":    {http.Header{"Origin": {"null"}}, true},
		"old browser, other port": {http.Header{"Origin": {"https://127.0.0.1:1"}}, true},
		"old browser, other name": {http.Header{"Origin": {"http://localhost"}}, true},
		"no URL":                  {http.Header{"Origin": {"https://%"}}, true},
	} {
		for _, a := range acts {
			want := a.allowed
			if tt.foreign {
				want = http.StatusForbidden
			}
			assert.Equal(t, want, status(a.method, a.path, a.header, tt.header), "%s: %s %s", name, a.method, a.path)
		}
		for _, path := range reads {
			assert.Less(t, status(http.MethodGet, path, tt.header), 300, "%s: %s", name, path)
		}
	}
}
