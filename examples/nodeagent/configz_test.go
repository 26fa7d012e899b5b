package main

import (
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestFlags_KubeletConfiguration(t *testing.T) {
	f, err := parse([]string{
		"-manifest-url", "http://user:s3cret@127.0.0.1/pods", "-manifest-url-header", "Authorization:s3cret", "-runtime-endpoint", "unix:///run/c.sock", "-node-name", "n",
		"-eviction-hard", "memory.available<1Gi,nodefs.available<10%", "-eviction-minimum-reclaim", "memory.available=50Mi", "-kube-reserved", "cpu=100m", "-max-parallel-image-pulls", "1",
		"-cluster-dns", "10.0.0.10,fd00::10", "-listen", "", "-listen-https", "127.0.0.1:10250", "-tls-cert-file", "/c", "-tls-private-key-file", "/k", "-client-ca-file", "/ca", "-v", "4",
	}, io.Discard)
	require.NoError(t, err)
	b, err := json.Marshal(f.kubeletConfiguration())
	require.NoError(t, err)
	assert.NotContains(t, string(b), "s3cret")
	assert.NotContains(t, f.debug.values["manifest-url"], "s3cret")
	assert.NotContains(t, f.debug.values, "topology-manager-policy", "it has no effect")
	assert.JSONEq(t, `{"kind": "KubeletConfiguration", "apiVersion": "kubelet.config.k8s.io/v1beta1",
		"staticPodURL": "http://user:xxxxx@127.0.0.1/pods", "podLogsDir": "/var/log/pods", "syncFrequency": "1m0s", "fileCheckFrequency": "20s", "httpCheckFrequency": "20s",
		"address": "127.0.0.1", "port": 10250, "tlsCertFile": "/c", "tlsPrivateKeyFile": "/k",
		"authentication": {"x509": {"clientCAFile": "/ca"}, "webhook": {"enabled": false}, "anonymous": {"enabled": false}},
		"registryPullQPS": 5, "registryBurst": 10, "maxParallelImagePulls": 1, "serializeImagePulls": true, "imagePullCredentialsVerificationPolicy": "NeverVerifyPreloadedImages",
		"imageMinimumGCAge": "2m0s", "imageMaximumGCAge": "0s", "imageGCHighThresholdPercent": 85, "imageGCLowThresholdPercent": 80,
		"clusterDNS": ["10.0.0.10", "fd00::10"], "resolvConf": "/etc/resolv.conf", "maxPods": 110, "podsPerCore": 0, "podPidsLimit": -1,
		"cpuCFSQuota": true, "cpuCFSQuotaPeriod": "100ms", "seccompDefault": false, "failSwapOn": false, "containerLogMaxSize": "10Mi", "containerLogMaxFiles": 5,
		"evictionHard": {"memory.available": "1Gi", "nodefs.available": "10%"}, "evictionMinimumReclaim": {"memory.available": "50Mi"},
		"evictionPressureTransitionPeriod": "5m0s", "evictionMaxPodGracePeriod": 0, "kubeReserved": {"cpu": "100m"}, "crashLoopBackOff": {"maxContainerRestartPeriod": "5m0s"},
		"logging": {"format": "text", "verbosity": 4}, "enableProfilingHandler": false, "enableSystemLogHandler": false, "registerNode": true,
		"containerRuntimeEndpoint": "unix:///run/c.sock"}`, string(b))
}

// Each field has the name and the type that it has in the kubelet's.
func TestKubeletConfiguration_FieldsOfTheKubelet(t *testing.T) {
	dir, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "k8s.io/kubelet").Output()
	require.NoError(t, err)
	file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(strings.TrimSpace(string(dir)), "config/v1beta1/types.go"), nil, 0)
	require.NoError(t, err)
	kubelet := map[string]string{}
	ast.Inspect(file, func(n ast.Node) bool {
		typ, ok := n.(*ast.TypeSpec)
		if !ok || typ.Name.Name != "KubeletConfiguration" {
			return true
		}
		for _, field := range typ.Type.(*ast.StructType).Fields.List {
			name, _, _ := strings.Cut(reflect.StructTag(strings.Trim(field.Tag.Value, "`")).Get("json"), ",")
			kubelet[name] = typeName(field.Type)
		}
		return false
	})
	ours := reflect.TypeFor[kubeletConfiguration]()
	for field := range ours.Fields() {
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		want, ok := kubelet[name]
		assert.True(t, ok, "the kubelet has no %s", name)
		if got := strings.ReplaceAll(field.Type.String(), "v1.", "metav1."); field.Type.Kind() != reflect.Struct || strings.HasPrefix(got, "metav1.") {
			if want != "ImagePullCredentialsVerificationPolicy" { // a string
				assert.Equal(t, want, got, name)
			}
		}
	}
	assert.Greater(t, ours.NumField(), 40)
}

// typeName returns an expression of a type as reflect prints it.
func typeName(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.StarExpr:
		return "*" + typeName(e.X)
	case *ast.ArrayType:
		return "[]" + typeName(e.Elt)
	case *ast.MapType:
		return "map[" + typeName(e.Key) + "]" + typeName(e.Value)
	case *ast.SelectorExpr:
		return typeName(e.X) + "." + e.Sel.Name
	case *ast.Ident:
		return e.Name
	}
	return ""
}
