package server_test

import (
	"encoding/json"
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// SV-14: /flagz and /statusz are objects for programs that ask for one, as with a kubelet, and text for all others.
func TestServer_ZPages(t *testing.T) {
	n := serveSecure(t)
	c := n.client(t)
	get := func(path, accept string) (int, string, string) {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+n.addr+path, http.NoBody)
		require.NoError(t, err)
		r.Header.Set("Authorization", "Bearer good")
		if accept != "" {
			r.Header.Set("Accept", accept)
		}
		resp, err := c.Do(r)
		require.NoError(t, err)
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		return resp.StatusCode, resp.Header.Get("Content-Type"), string(b)
	}
	const flagz, text, object = "application/json;as=Flagz;g=config.k8s.io;v=v1beta1", "text/plain; charset=utf-8", "application/json"
	for accept, want := range map[string]string{
		"": text, " ": text, "*/*": text, "text/*": text, "text/plain": text, "text/html, application/xml;q=0.9, */*;q=0.8": text,
		"application/json, */*": text, // kubectl get --raw
		flagz:                   object, "application/json; g=config.k8s.io; v=v1beta1; as=Flagz": object, flagz + ", text/plain": object, "text/html," + flagz: object,
		"application/*;as=Flagz;g=config.k8s.io;v=v1beta1": object, "*/*;as=Flagz;g=config.k8s.io;v=v1beta1": object, "text/plain, " + flagz: text,
		"application/json": "", "text/html": "", "application/yaml": "", "application/json;as=Statusz;g=config.k8s.io;v=v1beta1": "", ",;=,": "",
		"application/json;as=Flagz;g=config.k8s.io;v=v2": "", "application/json;as=Flagz": "", "text/plain;as=Flagz;g=config.k8s.io;v=v1beta1": "",
	} {
		status, kind, body := get("/flagz", accept)
		switch want {
		case "":
			assert.Equal(t, http.StatusNotAcceptable, status, accept)
		case text:
			assert.Equal(t, "kubelet flagz\nWarning: the format of this page may change.\n\nnode=n\nv=2\n", body, accept)
		case object:
			assert.JSONEq(t, `{"kind": "Flagz", "apiVersion": "config.k8s.io/v1beta1", "metadata": {"name": "kubelet"}, "flags": {"v": "2", "node": "n"}}`, body, accept)
		}
		if want != "" {
			assert.Equal(t, http.StatusOK, status, accept)
			assert.Equal(t, want, kind, accept)
		}
	}
	status, kind, body := get("/statusz", "application/json;as=Statusz;g=config.k8s.io;v=v1beta1")
	assert.Equal(t, http.StatusOK, status)
	assert.Equal(t, object, kind)
	var got struct {
		Kind, APIVersion, GoVersion, BinaryVersion string
		Metadata                                   struct{ Name string }
		StartTime                                  time.Time
		UptimeSeconds                              *int64
		Paths                                      []string
	}
	require.NoError(t, json.Unmarshal([]byte(body), &got))
	assert.Equal(t, []string{"Statusz", "config.k8s.io/v1beta1", "kubelet"}, []string{got.Kind, got.APIVersion, got.Metadata.Name})
	assert.Regexp(t, "^go1", got.GoVersion)
	assert.NotEmpty(t, got.BinaryVersion)
	assert.WithinDuration(t, time.Now(), got.StartTime, time.Hour)
	require.NotNil(t, got.UptimeSeconds)
	assert.Contains(t, got.Paths, "/exec")
	assert.Contains(t, got.Paths, "/healthz")
	assert.NotContains(t, got.Paths, "/logs", "disabled")
	assert.IsIncreasing(t, got.Paths)
}
