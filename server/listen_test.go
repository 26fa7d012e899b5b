package server_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	authenticationv1 "k8s.io/api/authentication/v1"

	"github.com/sublet-dev/agent/server"
)

// A socket replaces the one that a killed process left, and only its user can
// connect. SV-1
func TestServer_ListensOnASocket(t *testing.T) {
	dir, err := os.MkdirTemp("", "srv") //nolint:usetesting // t.TempDir is too long for a socket
	require.NoError(t, err)
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "s")
	stale, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	require.NoError(t, err)
	stale.SetUnlinkOnClose(false)
	require.NoError(t, stale.Close())

	srv, err := server.New(server.Config{Addr: "unix://" + path, Authenticators: []server.Authenticator{
		server.AuthenticatorFunc(func(r *http.Request) (*authenticationv1.UserInfo, error) {
			if r.URL.Path == "/pods" {
				return nil, errors.New("secret detail")
			}
			return &authenticationv1.UserInfo{Username: "u"}, nil
		}),
	}})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- srv.Run(ctx) }()
	client := http.Client{Timeout: time.Minute, Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", path)
	}}}
	get := func(url string) (int, error) {
		resp, err := client.Get(url)
		if err != nil {
			return 0, err
		}
		return resp.StatusCode, resp.Body.Close()
	}
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		code, err := get("http://localhost/healthz")
		assert.NoError(c, err)
		assert.Equal(c, http.StatusOK, code)
	}, time.Minute, 10*time.Millisecond)
	info, err := os.Stat(path)
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o600), info.Mode().Perm())
	code, err := get("http://any.name/healthz")
	require.NoError(t, err)
	assert.Equal(t, http.StatusOK, code, "no name in DNS leads to a socket")
	code, err = get("http://localhost/pods")
	require.NoError(t, err)
	assert.Equal(t, http.StatusUnauthorized, code)
	cancel()
	require.NoError(t, <-done)
}

func TestNew_RejectsInvalidSockets(t *testing.T) {
	_, err := server.New(server.Config{Addr: "unix://relative"})
	require.EqualError(t, err, fmt.Sprintf("server: Config.Addr: %q: must be unix:///path", "unix://relative"))
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, []byte("data"), 0o600))
	srv, err := server.New(server.Config{Addr: "unix://" + file})
	require.NoError(t, err)
	require.Error(t, srv.Run(t.Context()))
	assert.FileExists(t, file, "only a socket is replaced")
}
