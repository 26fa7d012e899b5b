package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// tokenPlugin is a credential provider plugin that keeps its requests and answers with a login.
const tokenPlugin = `#!/bin/sh
cat >>"$REQUESTS"; echo >>"$REQUESTS"
echo '{"kind":"CredentialProviderResponse","apiVersion":"credentialprovider.kubelet.k8s.io/v1","cacheKeyType":"Image","auth":{"127.0.0.1:PORT":{"username":"plugin","password":"right"}}}'
`

const tokenPluginConfig = `apiVersion: kubelet.config.k8s.io/v1
kind: CredentialProviderConfig
providers:
- name: plugin
  apiVersion: credentialprovider.kubelet.k8s.io/v1
  matchImages: ["127.0.0.1:PORT"]
  defaultCacheDuration: 1h
  env: [{name: REQUESTS, value: REQUESTSFILE}]
  tokenAttributes: {serviceAccountTokenAudience: registry.example, cacheType: Token, requireServiceAccount: true, requiredServiceAccountAnnotationKeys: [example.com/registry]}
`

// IM-5, IM-6: pods pull with the secrets of their service accounts, which a real API server adds to
// them, and with the logins of a plugin that gets their tokens. Others do not get the images.
func TestRun_UpstreamServiceAccounts(t *testing.T) {
	c := newClusterNodeWithServiceAccounts(t)
	host, path, _ := strings.Cut(c.node.Busybox, "/")
	proxy := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: host})
	registry := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		user, password, _ := r.BasicAuth()
		if password != "right" || user != "secret" && user != "plugin" {
			w.Header().Set("WWW-Authenticate", `Basic realm="test"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		r.Header.Del("Authorization")
		proxy.ServeHTTP(w, r)
	}))
	defer registry.Close()
	where := strings.TrimPrefix(registry.URL, "http://")
	_, port, _ := strings.Cut(where, ":")
	dir := t.TempDir()
	requests := filepath.Join(dir, "requests")
	fill := strings.NewReplacer("PORT", port, "REQUESTSFILE", requests)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "plugin"), []byte(fill.Replace(tokenPlugin)), 0o700)) //nolint:gosec // a program
	require.NoError(t, os.WriteFile(filepath.Join(dir, "config.yaml"), []byte(fill.Replace(tokenPluginConfig)), 0o600))
	c.extra = append(c.extra, "-image-credential-provider-config", filepath.Join(dir, "config.yaml"), "-image-credential-provider-bin-dir", dir)

	core := c.admin.CoreV1()
	_, err := core.Secrets("default").Create(c.ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "pull"}, Type: corev1.SecretTypeDockerConfigJson,
		Data: map[string][]byte{corev1.DockerConfigJsonKey: fmt.Appendf(nil, `{"auths":{%q:{"username":"secret","password":"right"}}}`, where)},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	for _, account := range []*corev1.ServiceAccount{
		{ObjectMeta: metav1.ObjectMeta{Name: "secret"}, ImagePullSecrets: []corev1.LocalObjectReference{{Name: "pull"}}},
		{ObjectMeta: metav1.ObjectMeta{Name: "token", Annotations: map[string]string{"example.com/registry": "yes"}}},
		{ObjectMeta: metav1.ObjectMeta{Name: "none"}},
	} {
		_, err := core.ServiceAccounts("default").Create(c.ctx, account, metav1.CreateOptions{})
		require.NoError(t, err)
	}
	_, err = c.admin.RbacV1().ClusterRoles().Create(c.ctx, &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: "tokens"},
		Rules: []rbacv1.PolicyRule{
			{Verbs: []string{"request-serviceaccounts-token-audience"}, APIGroups: []string{""}, Resources: []string{"registry.example"}},
		},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	_, err = c.admin.RbacV1().ClusterRoleBindings().Create(c.ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "tokens"}, RoleRef: rbacv1.RoleRef{Kind: "ClusterRole", Name: "tokens"},
		Subjects: []rbacv1.Subject{{Kind: "Group", Name: "system:nodes"}},
	}, metav1.CreateOptions{})
	require.NoError(t, err)

	c.start()
	create := func(name, account string) {
		t.Helper()
		c.createPod(name, fmt.Sprintf(`  serviceAccountName: %s
  containers:
  - name: main
    image: %s/%s
    imagePullPolicy: IfNotPresent
    command: ["sh", "-c", "trap 'exit 0' TERM; sleep 1000000 & wait"]
`, account, where, path))
	}
	create("a", "token")
	c.phase("a", corev1.PodRunning)
	text, err := os.ReadFile(requests)
	require.NoError(t, err)
	assert.Contains(t, string(text), `"serviceAccountToken":"ey`)
	assert.Contains(t, string(text), `"serviceAccountAnnotations":{"example.com/registry":"yes"}`)
	create("b", "none")
	c.hasEvent("b", "Failed")
	create("c", "secret")
	c.phase("c", corev1.PodRunning)
	create("d", "token")
	c.phase("d", corev1.PodRunning)
	pod, err := core.Pods("default").Get(c.ctx, "b", metav1.GetOptions{})
	require.NoError(t, err)
	require.Equal(t, corev1.PodPending, pod.Status.Phase)
}
