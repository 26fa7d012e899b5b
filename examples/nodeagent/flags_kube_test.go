package main

import (
	"io"
	"log/slog"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
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
	taints, err := parseTaints("a=b:NoSchedule,c:NoExecute")
	require.NoError(t, err)
	assert.Equal(t, []corev1.Taint{{Key: "a", Value: "b", Effect: "NoSchedule"}, {Key: "c", Effect: "NoExecute"}}, taints)
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
	opts, err := f.cluster(t.Context(), slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	assert.Empty(t, opts)
	f.kube.kubeconfig = filepath.Join(t.TempDir(), "none")
	_, err = f.cluster(t.Context(), slog.New(slog.DiscardHandler))
	require.ErrorContains(t, err, "kubeconfig")
}
