package cri

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/internal/logtest"
)

// credentials is a CredentialProvider.
type credentials func(image string) (map[string]RegistryLogin, error)

func (f credentials) Credentials(_ context.Context, image string) (map[string]RegistryLogin, error) {
	return f(image)
}

func logins(host, user, password string) map[string]RegistryLogin {
	return map[string]RegistryLogin{host: {Username: user, Password: password}}
}

// IM-6: what the node itself could pull is for every pod, also without a secret.
func TestCredentials_OfTheNode(t *testing.T) {
	f := privateRegistry()
	var asked []string
	c := f.client(t, Config{Credentials: credentials(func(image string) (map[string]RegistryLogin, error) {
		asked = append(asked, image)
		return logins("*.example/team", "ann", "right"), nil
	})})
	require.Empty(t, use(t, c, private, corev1.PullIfNotPresent))
	require.Empty(t, use(t, c, private, corev1.PullNever), "it is for every pod")
	require.Equal(t, []string{private}, asked, "only a pull needs logins")
	assert.Equal(t, "ErrImagePull", use(t, c, "reg.example/other/app:1", corev1.PullIfNotPresent), "the login is for another path")
}

// The logins of a pod come first, and one of the node does not make its image public.
func TestCredentials_AfterThoseOfThePod(t *testing.T) {
	f := privateRegistry()
	c := f.client(t, Config{Credentials: credentials(func(string) (map[string]RegistryLogin, error) {
		return logins("reg.example", "node", "wrong"), nil
	})})
	require.Empty(t, use(t, c, private, corev1.PullIfNotPresent, loginOf("ann", "right")))
	require.Equal(t, "ErrImageNeverPull", use(t, c, private, corev1.PullNever))
	require.Equal(t, "ErrImagePull", use(t, c, private, corev1.PullIfNotPresent))
}

// A provider that fails does not keep a pod from its own logins, and its error is logged.
func TestCredentials_Unavailable(t *testing.T) {
	for name, provider := range map[string]credentials{
		"vault is sealed":         func(string) (map[string]RegistryLogin, error) { return nil, errors.New("vault is sealed") },
		"panic":                   func(string) (map[string]RegistryLogin, error) { panic("bug") },
		"1 entries are malformed": func(string) (map[string]RegistryLogin, error) { return logins("[", "x", "y"), nil },
	} {
		t.Run(name, func(t *testing.T) {
			var log logtest.Buffer
			f := privateRegistry()
			c := f.client(t, Config{Credentials: provider, Logger: slog.New(slog.NewTextHandler(&log, nil))})
			require.Empty(t, use(t, c, private, corev1.PullIfNotPresent, loginOf("ann", "right")))
			assert.True(t, strings.Contains(log.String(), "credentials of the node unavailable") && strings.Contains(log.String(), name), log.String())
		})
	}
}
