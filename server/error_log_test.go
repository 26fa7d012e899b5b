package server_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"

	"github.com/sublet-dev/agent/internal/logtest"
	"github.com/sublet-dev/agent/server"
)

// A client without any rights cannot fill the log. SV-6
func TestServe_LogOfStrangersIsBounded(t *testing.T) {
	var logged logtest.Buffer
	n := serveSecure(t, func(cfg *server.Config) {
		cfg.Logger, cfg.Anonymous = logtest.NewLogger(&logged, slog.LevelInfo), true
		cfg.Authorizer = server.AuthorizerFunc(func(context.Context, *authenticationv1.UserInfo, *authorizationv1.ResourceAttributes) (bool, error) {
			return false, errors.New("webhook is down")
		})
	})
	var first string
	for range 20 {
		c := dial(t, n.addr)
		_, err := c.Write([]byte("no TLS, and no HTTP\n"))
		require.NoError(t, err)
		_, _ = io.Copy(io.Discard, c) // the end comes when it is logged
		if first == "" {
			first = c.LocalAddr().String()
		}
	}
	assert.Equal(t, 1, strings.Count(logged.String(), "\n"), logged.String())
	assert.Contains(t, logged.String(), "TLS handshake error from "+first)
	logged.Reset()
	for range 20 {
		status, _, _ := n.do(t, n.client(t), http.MethodGet, "/healthz", "")
		assert.Equal(t, http.StatusInternalServerError, status)
	}
	assert.Equal(t, 1, strings.Count(logged.String(), "\n"), logged.String())
	for _, want := range []string{"authorization failed", "user=system:anonymous", "webhook is down"} {
		assert.Contains(t, logged.String(), want)
	}
}

// What is not a client's doing is always logged, however often handshakes fail.
func TestServe_PanicOfAHandlerIsLogged(t *testing.T) {
	var logged logtest.Buffer
	n := serveSecure(t, func(cfg *server.Config) {
		cfg.Logger = logtest.NewLogger(&logged, slog.LevelInfo)
		cfg.Handlers = map[string]http.Handler{"/broken": http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic("broken") })}
	})
	for range 2 {
		c := dial(t, n.addr)
		_, err := c.Write([]byte("no TLS, and no HTTP\n"))
		require.NoError(t, err)
		_, _ = io.Copy(io.Discard, c)
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+n.addr+"/broken", http.NoBody)
		require.NoError(t, err)
		r.Header.Set("Authorization", "Bearer good")
		resp, err := n.client(t).Do(r)
		if err == nil {
			_ = resp.Body.Close()
		}
		require.Error(t, err)
	}
	assert.Equal(t, 2, strings.Count(logged.String(), "http: panic serving"), logged.String())
}
