package cri

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/internal/logtest"
	"github.com/sublet-dev/agent/podspec"
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

// Slashes at the end of a place mean nothing, so that a provider can have several logins for it.
func TestCredentials_SeveralForOnePlace(t *testing.T) {
	for _, place := range []string{"reg.example", "https://reg.example/v1/", "reg.example/team"} {
		f := newFake()
		var users []string
		f.setBefore(func(_ context.Context, _ string, req any) error {
			r, ok := req.(*v1.PullImageRequest)
			if !ok {
				return nil
			}
			users = append(users, r.GetAuth().GetUsername())
			if len(users) < 3 {
				return status.Error(codes.Unauthenticated, "401")
			}
			return nil
		})
		c := f.client(t, Config{Credentials: credentials(func(string) (map[string]RegistryLogin, error) {
			return map[string]RegistryLogin{place + "//": {Username: "third"}, place: {Username: "first"}, place + "/": {Username: "second"}}, nil
		})})
		require.Empty(t, use(t, c, private, corev1.PullIfNotPresent))
		assert.Equal(t, []string{"first", "second", "third"}, users)
	}
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

// podCredentials is a PodCredentialProvider.
type podCredentials struct {
	credentials
	of func(pod *corev1.Pod) (map[string]RegistryLogin, error)
}

func (p podCredentials) PodCredentials(_ context.Context, pod *corev1.Pod, _ string) (map[string]RegistryLogin, error) {
	return p.of(pod)
}

// IM-6: what a service account could pull is for its pods alone, also after a restart and
// with another token, and not for those who have made its name their password.
func TestCredentials_OfServiceAccounts(t *testing.T) {
	const account = "default/builder uid-1"
	f := privateRegistry()
	password := "right"
	provider := podCredentials{of: func(pod *corev1.Pod) (map[string]RegistryLogin, error) {
		switch pod.Spec.ServiceAccountName {
		case "builder":
			return map[string]RegistryLogin{"reg.example": {Username: "ann", Password: password, ServiceAccount: account}}, nil
		case "other":
			return map[string]RegistryLogin{"reg.example": {Username: "other", Password: "x", ServiceAccount: "default/other uid-2"}}, nil
		case "late":
			return nil, errors.New("token denied")
		}
		return nil, nil
	}}
	cfg := Config{Credentials: provider, ImageAccess: ImageAccess{File: filepath.Join(t.TempDir(), "pulls.json")}}
	c := f.client(t, cfg)
	useAs := func(serviceAccount string, policy corev1.PullPolicy, secrets ...podspec.Object) string {
		t.Helper()
		pod := onePod("main")
		pod.Spec.ServiceAccountName = serviceAccount
		_, err := newEnsureRun(c, pod, secrets...).ensure(t.Context(), "main", neededImage{private, policy})
		if err != nil {
			return failure("", err).Reason
		}
		return ""
	}
	require.Empty(t, useAs("builder", corev1.PullIfNotPresent))
	password = "renewed"
	for range 2 {
		pulls := len(f.pulls)
		assert.Empty(t, useAs("builder", corev1.PullNever))
		assert.Empty(t, useAs("builder", corev1.PullIfNotPresent))
		assert.Len(t, f.pulls, pulls, "it is present")
		for _, name := range []string{"", "other", "late"} {
			assert.Equal(t, "ErrImageNeverPull", useAs(name, corev1.PullNever), name)
		}
		assert.Equal(t, "ErrImageNeverPull", useAs("", corev1.PullNever, dockerSecret("s", `{"auths":{"reg.example":{"registrytoken":"service account default/builder uid-1"}}}`)))
		c = f.client(t, cfg)
	}
	assert.Equal(t, "ErrImagePull", useAs("other", corev1.PullIfNotPresent))
	assert.NotEmpty(t, useAs("", corev1.PullIfNotPresent))
}
