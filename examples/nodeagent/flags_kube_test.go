package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/sublet-dev/agent/kube"
	"github.com/sublet-dev/agent/kubeletconfig"
	"github.com/sublet-dev/agent/node"
	"github.com/sublet-dev/agent/server"
)

func TestParse_KubeFlags(t *testing.T) {
	for name, tc := range map[string]struct {
		args []string
		want string
	}{
		"a kubeconfig is a source of pods": {[]string{"-kubeconfig", "/k"}, ""},
		"bootstrap writes a kubeconfig":    {[]string{"-manifests", "/m", "-bootstrap-kubeconfig", "/b"}, "-bootstrap-kubeconfig needs -kubeconfig"},
		"certificates are in a directory":  {[]string{"-kubeconfig", "/k", "-cert-dir", "pki"}, `-cert-dir "pki": must be an absolute path`},
		"taints":                           {[]string{"-kubeconfig", "/k", "-register-with-taints", "a=b:NoSchedule,c:NoExecute"}, ""},
		"a taint without an effect":        {[]string{"-kubeconfig", "/k", "-register-with-taints", "a=b"}, `"a=b" must be key=value:effect`},
		"a taint without a key":            {[]string{"-kubeconfig", "/k", "-register-with-taints", ":NoSchedule"}, "must be key=value:effect"},
		"a name that no Node can have":     {[]string{"-kubeconfig", "/k", "-node-name", "edge_1"}, `-node-name "edge_1": not the name of a Node`},
		"a name without a cluster":         {[]string{"-manifests", "/m", "-node-name", "edge_1"}, ""},
		"a taint with another effect":      {[]string{"-kubeconfig", "/k", "-register-with-taints", "a:Never"}, "must be key=value:effect"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := parse(tc.args, io.Discard)
			if tc.want == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, tc.want)
		})
	}
	f, err := parse([]string{"-kubeconfig", "/k", "-register-with-taints", "a=b:NoSchedule,c:NoExecute"}, io.Discard)
	require.NoError(t, err)
	assert.Equal(t, []corev1.Taint{{Key: "a", Value: "b", Effect: "NoSchedule"}, {Key: "c", Effect: "NoExecute"}}, f.config.effective.Kubelet().RegisterWithTaints)
}

func TestServerPort(t *testing.T) {
	assert.EqualValues(t, 10250, serverPort(":10250"))
	assert.EqualValues(t, 443, serverPort("[::1]:443"))
	for _, addr := range []string{"", "unix:///run/x", "host", "host:port", "host:70000"} {
		assert.Zero(t, serverPort(addr), addr)
	}
}

func TestFlags_ClusterWithoutKubeconfig(t *testing.T) {
	f := flags{}
	c, err := f.cluster(t.Context(), pluginDirs{}, &lateAccounts{}, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	assert.Nil(t, c)
	f.kube.kubeconfig = filepath.Join(t.TempDir(), "none")
	_, err = f.cluster(t.Context(), pluginDirs{}, &lateAccounts{}, slog.New(slog.DiscardHandler))
	require.ErrorContains(t, err, "kubeconfig")
}

func TestParse_ListensForTheAPIServer(t *testing.T) {
	for want, args := range map[string][]string{
		"":         {"-manifests", "/m"},
		":10250":   {"-kubeconfig", "/k"},
		"[::1]:10": {"-kubeconfig", "/k", "-listen-https", "[::1]:10"},
	} {
		f, err := parse(args, io.Discard)
		require.NoError(t, err)
		assert.Equal(t, want, f.listen.https)
	}
	f, err := parse([]string{"-kubeconfig", "/k", "-listen-https", ""}, io.Discard)
	require.NoError(t, err)
	assert.Empty(t, f.listen.https)
}

// The API server knows the users and their rights; without it all clients are denied.
func TestCluster_Secure(t *testing.T) {
	client := fake.NewClientset()
	down := false
	client.PrependReactor("create", "*", func(action clienttesting.Action) (bool, runtime.Object, error) {
		if down {
			return true, nil, errors.New("connection refused")
		}
		switch o := action.(clienttesting.CreateAction).GetObject().(type) {
		case *authenticationv1.TokenReview:
			o.Status = authenticationv1.TokenReviewStatus{Authenticated: o.Spec.Token != "wrong", User: authenticationv1.UserInfo{Username: o.Spec.Token}}
			return true, o, nil
		case *authorizationv1.SubjectAccessReview:
			o.Status.Allowed = o.Spec.User == "admin"
			return true, o, nil
		}
		return false, nil, nil
	})
	code := func(token string) int {
		cfg := server.Config{Addr: "127.0.0.1:0", NodeName: "n"}
		require.NoError(t, (&cluster{client: client, serving: new(kube.ServingCertificate)}).secure(&cfg, kubeletconfig.Default().Kubelet()))
		_, err := cfg.TLS.GetCertificate(nil)
		require.ErrorIs(t, err, kube.ErrNoServingCertificate)
		srv, err := server.New(cfg)
		require.NoError(t, err)
		r, w := httptest.NewRequest(http.MethodGet, "/pods", nil), httptest.NewRecorder()
		r.TLS = &tls.ConnectionState{}
		if token != "" {
			r.Header.Set("Authorization", "Bearer "+token)
		}
		srv.ServeHTTP(w, r)
		return w.Code
	}
	assert.Equal(t, http.StatusOK, code("admin"))
	assert.Equal(t, http.StatusForbidden, code("guest"))
	assert.Equal(t, http.StatusUnauthorized, code("wrong"))
	assert.Equal(t, http.StatusUnauthorized, code(""), "anonymous")
	down = true
	assert.Equal(t, http.StatusUnauthorized, code("admin"))
}

// unreachableCluster writes a kubeconfig for an API server that is away.
func unreachableCluster(t *testing.T, dir string) (path string) {
	t.Helper()
	path = filepath.Join(dir, "kubeconfig")
	require.NoError(t, os.WriteFile(path, []byte(`
apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "https://127.0.0.1:1"}}]
users: [{name: u, user: {token: t}}]
contexts: [{name: x, context: {cluster: c, user: u}}]
current-context: x
`), 0o600))
	return path
}

// Without files, the certificate is one that the cluster signs for the addresses of the node.
func TestFlags_ClusterRequestsServingCertificate(t *testing.T) {
	dir := t.TempDir()
	kubeconfig := unreachableCluster(t, dir)
	args := []string{"-kubeconfig", kubeconfig, "-node-name", "n", "-node-ip", "127.0.0.1", "-root-dir", dir}
	for name, tc := range map[string]struct {
		args    []string
		request bool
	}{
		"no certificate":    {args, true},
		"certificate given": {append(args, "-tls-cert-file", "c", "-tls-private-key-file", "k"), false},
		"no server":         {append(args, "-listen-https", ""), false},
	} {
		t.Run(name, func(t *testing.T) {
			f, err := parse(tc.args, io.Discard)
			require.NoError(t, err)
			c, err := f.cluster(t.Context(), pluginDirs{}, &lateAccounts{}, slog.New(slog.DiscardHandler))
			require.NoError(t, err)
			assert.Equal(t, tc.request, c.serving != nil)
		})
	}
}

// Flags that only the cluster finds wrong are wrong flags.
func TestFlags_ClusterRejectsLabels(t *testing.T) {
	dir := t.TempDir()
	f, err := parse([]string{"-kubeconfig", unreachableCluster(t, dir), "-node-name", "n", "-root-dir", dir, "-node-labels", "kubernetes.io/role=edge"}, io.Discard)
	require.NoError(t, err)
	_, err = f.cluster(t.Context(), pluginDirs{}, &lateAccounts{}, slog.New(slog.DiscardHandler))
	require.ErrorContains(t, err, "kubernetes.io/role")
	assert.Equal(t, exitUsage, exitCode(err))
}

// A node that is stopped while it waits for its first certificate has not failed.
func TestRun_StopsWhileItWaitsForACertificate(t *testing.T) {
	dir := t.TempDir()
	bootstrap := unreachableCluster(t, dir)
	f, err := parse([]string{
		"-kubeconfig", filepath.Join(dir, "node"), "-bootstrap-kubeconfig", bootstrap, "-node-name", "n", "-root-dir", filepath.Join(dir, "root"),
		"-pod-logs-dir", filepath.Join(dir, "logs"), "-listen", "", "-listen-https", "",
	}, io.Discard)
	require.NoError(t, err)
	socket := filepath.Join(dir, "notify")
	systemd, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket, Net: "unixgram"})
	require.NoError(t, err)
	defer func() { _ = systemd.Close() }()
	t.Setenv("NOTIFY_SOCKET", socket)
	ctx, cancel := context.WithCancel(t.Context())
	log := &waitingLog{text: "client certificate requested", stop: cancel}
	require.NoError(t, run(ctx, f, log))
	buf := make([]byte, 1<<12)
	n, err := systemd.Read(buf)
	require.NoError(t, err)
	assert.Regexp(t, `^EXTEND_TIMEOUT_USEC=[1-9][0-9]+\nSTATUS=waiting for a client certificate`, string(buf[:n]), "a person may need longer than TimeoutStartSec")
}

// waitingLog calls stop when a text is logged.
type waitingLog struct {
	text string
	stop func()
}

func (l *waitingLog) Write(b []byte) (int, error) {
	if bytes.Contains(b, []byte(l.text)) {
		l.stop()
	}
	return len(b), nil
}

// A node says that its server takes WebSockets if it has one that serves them.
func TestDescribe_DeclaresWebSockets(t *testing.T) {
	dir := t.TempDir()
	config := filepath.Join(dir, "config.yaml")
	require.NoError(t, os.WriteFile(config, []byte("apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nenableDebuggingHandlers: false\n"), 0o600))
	cluster := []string{"-kubeconfig", "/k", "-node-name", "n", "-node-ip", "192.0.2.1"}
	for name, tc := range map[string]struct {
		args []string
		want []string
	}{
		"by default":            {cluster, []string{server.FeatureWebSockets}},
		"not with the gate off": {append(cluster, "-feature-gates=ExtendWebSocketsToKubelet=false"), nil},
		"not without a server":  {append(cluster, "-listen-https="), nil},
		"not without streams":   {append(cluster, "-config", config), nil},
		"not without a cluster": {[]string{"-manifests", "/m"}, nil},
	} {
		f, err := parse(tc.args, io.Discard)
		require.NoError(t, err, name)
		described, err := f.describe(node.Config{}, slog.New(slog.DiscardHandler))
		require.NoError(t, err, name)
		assert.Equal(t, tc.want, described.DeclaredFeatures, name)
	}
}
