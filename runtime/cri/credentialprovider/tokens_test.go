package credentialprovider_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/runtime/cri"
	"github.com/sublet-dev/agent/runtime/cri/credentialprovider"
)

// accounts are the service accounts of a cluster. Each pod has a token of its own.
type accounts struct{ err error }

func (a *accounts) ServiceAccount(_ context.Context, namespace, name string) (*corev1.ServiceAccount, error) {
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID("uid-of-" + name)}}
	if name != "plain" {
		account.Annotations = map[string]string{"example.com/role": name + "-role", "other": "x", "example.com/zone": "7"}
	}
	return account, a.err
}

func (a *accounts) ServiceAccountTokenOf(_ context.Context, pod *corev1.Pod, account types.UID, p *corev1.ServiceAccountTokenProjection) ([]byte, error) {
	if pod.Name == "denied" || account != types.UID("uid-of-"+pod.Spec.ServiceAccountName) {
		return nil, errors.New("token denied")
	}
	return fmt.Appendf(nil, "token-of-%s-for-%s", pod.Name, p.Audience), nil
}

// loadWithTokens returns a plugin with token attributes, and its calls without what all have.
func loadWithTokens(t *testing.T, mode, attributes string) (*credentialprovider.Plugins, func() []string, *accounts) {
	t.Helper()
	config, dir, calls := setup(t, mode, "r.example")
	text, err := os.ReadFile(config)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(config, append(text, "  tokenAttributes: {serviceAccountTokenAudience: registry, "+attributes+"}\n"...), 0o600))
	a := &accounts{}
	p, err := credentialprovider.LoadPlugins(credentialprovider.PluginsConfig{Path: config, BinDir: dir, ServiceAccounts: a})
	require.NoError(t, err)
	return p, func() []string {
		text, err := os.ReadFile(calls)
		if err != nil {
			return nil
		}
		const all = "CredentialProviderRequest credentialprovider.kubelet.k8s.io/v1 r.example/app --verbose"
		lines := strings.Split(strings.TrimSpace(string(text)), "\n")
		for i := range lines {
			lines[i] = strings.TrimPrefix(strings.TrimPrefix(lines[i], all), " ")
		}
		return lines
	}, a
}

func podOf(name, account string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}, Spec: corev1.PodSpec{ServiceAccountName: account}}
}

// A plugin gets the token of the pod's service account and the annotations that it wants, and
// its login is for that service account.
func TestPlugins_GetTokensOfServiceAccounts(t *testing.T) {
	p, calls, _ := loadWithTokens(t, "Image", "cacheType: Token, requireServiceAccount: true, requiredServiceAccountAnnotationKeys: [example.com/role], optionalServiceAccountAnnotationKeys: [example.com/zone, example.com/none]")
	logins, err := p.PodCredentials(t.Context(), podOf("a", "builder"), "r.example/app")
	require.NoError(t, err)
	assert.Equal(t, map[string]cri.RegistryLogin{"r.example": {Username: "u", Password: "hunter2", ServiceAccount: "ns/builder uid-of-builder"}}, logins)
	assert.Equal(t, []string{"token-of-a-for-registry map[example.com/role:builder-role example.com/zone:7]"}, calls())

	for name, pod := range map[string]*corev1.Pod{"no service account": podOf("b", ""), "no annotation": podOf("b", "plain")} {
		logins, err = p.PodCredentials(t.Context(), pod, "r.example/app")
		require.NoError(t, err, name)
		assert.Empty(t, logins, name)
	}
	logins, err = p.Credentials(t.Context(), "r.example/app")
	require.NoError(t, err)
	assert.Empty(t, logins, "of no pod")
	assert.Len(t, calls(), 1)
}

// How long an answer counts is said by the plugin, for whom by its configuration.
func TestPlugins_CacheByServiceAccount(t *testing.T) {
	pods := []*corev1.Pod{podOf("a", "builder"), podOf("a", "builder"), podOf("b", "builder"), podOf("c", "other"), podOf("d", "")}
	for cacheType, want := range map[string][]string{
		"Token":          {"token-of-a-for-registry", "token-of-b-for-registry", "token-of-c-for-registry", ""},
		"ServiceAccount": {"token-of-a-for-registry", "token-of-c-for-registry", ""},
	} {
		for _, mode := range []string{"Image", "Registry", "Global"} {
			t.Run(cacheType+" "+mode, func(t *testing.T) {
				p, calls, _ := loadWithTokens(t, mode, "requireServiceAccount: false, cacheType: "+cacheType)
				for _, pod := range pods {
					logins, err := p.PodCredentials(t.Context(), pod, "r.example/app")
					require.NoError(t, err)
					require.Equal(t, pod.Spec.ServiceAccountName == "", logins["r.example"].ServiceAccount == "", "without a token it is for all pods")
				}
				assert.Equal(t, want, calls())
			})
		}
	}
}

// Without the service account or its token the plugin is not called, and the error has no token.
func TestPlugins_TokenFaults(t *testing.T) {
	p, calls, a := loadWithTokens(t, "echo", "requireServiceAccount: true, cacheType: ServiceAccount")
	_, err := p.PodCredentials(t.Context(), podOf("denied", "builder"), "r.example/app")
	require.EqualError(t, err, "credential provider plugin plugin: service account ns/builder: token denied")
	a.err = errors.New("no answer")
	_, err = p.PodCredentials(t.Context(), podOf("a", "builder"), "r.example/app")
	require.ErrorContains(t, err, "no answer")
	assert.Empty(t, calls())

	a.err = nil
	_, err = p.PodCredentials(t.Context(), podOf("a", "builder"), "r.example/app")
	require.ErrorContains(t, err, "needs cacheType: Token")
	require.NotContains(t, err.Error(), "token-of-a")
	p, _, _ = loadWithTokens(t, "echo", "requireServiceAccount: true, cacheType: Token")
	logins, err := p.PodCredentials(t.Context(), podOf("a", "builder"), "r.example/app")
	require.NoError(t, err)
	assert.Equal(t, "token-of-a-for-registry", logins["r.example"].Password)
}

// Joined providers pass the pod on to those that ask for it.
func TestJoin_PodCredentials(t *testing.T) {
	p, calls, _ := loadWithTokens(t, "Image", "requireServiceAccount: true, cacheType: Token")
	joined, ok := credentialprovider.Join(credentialprovider.DockerConfig(t.TempDir()+"/none"), p).(cri.PodCredentialProvider)
	require.True(t, ok)
	logins, err := joined.PodCredentials(t.Context(), podOf("a", "builder"), "r.example/app")
	require.NoError(t, err)
	assert.Len(t, logins, 1)
	_, err = joined.Credentials(t.Context(), "r.example/app")
	require.NoError(t, err)
	assert.Len(t, calls(), 1)
}
