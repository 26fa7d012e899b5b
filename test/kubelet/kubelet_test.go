//go:build linux

package kubelet

import (
	"cmp"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sublet-dev/agent/internal/containerdtest"
	"github.com/sublet-dev/agent/internal/kubetest"
)

// The environment of the test; README.md describes it.
const (
	envPrograms = "SUBLET_KUBELET"
	envOut      = "SUBLET_KUBELET_OUT"
	envTime     = "SUBLET_KUBELET_TIME"
	envRuntime  = "SUBLET_KUBELET_RUNTIME"
	envWorkers  = "SUBLET_KUBELET_WORKERS"
)

// nodeName is an address, so that the API server reaches the node without resolving a name.
const nodeName = "127.0.0.1"

// Statuses are right, nothing is left, and no call fails that should not.
func TestKubelet(t *testing.T) {
	t.Run("churn", func(t *testing.T) {
		programs := os.Getenv(envPrograms)
		if programs == "" {
			t.Skipf("%s names no directory of Kubernetes' programs; test/kubelet/run builds them as root", envPrograms)
		}
		period, err := time.ParseDuration(cmp.Or(os.Getenv(envTime), "5m"))
		require.NoError(t, err)
		workers, err := strconv.Atoi(cmp.Or(os.Getenv(envWorkers), "6"))
		require.NoError(t, err)
		out := cmp.Or(os.Getenv(envOut), t.TempDir())
		require.NoError(t, os.MkdirAll(out, 0o755))

		runtime := startRuntime(t, out)
		cluster := kubetest.StartCluster(t, programs)
		kubeletLog := startKubelet(t, programs, out, runtime, cluster)

		c := newChurn(t, cluster, runtime)
		before := runtime.sample(t)
		samples := runtime.sampleEvery(t, filepath.Join(out, "samples.csv"), 10*time.Second)
		c.run(workers, period)
		c.removeAll()
		runtime.requireEmpty(t)
		samples.stop()
		after := runtime.sample(t)

		failures, err := runtimeErrors(kubeletLog)
		require.NoError(t, err)
		report := c.report() + compareSamples(before, after) + failures.table()
		require.NoError(t, os.WriteFile(filepath.Join(out, "results.txt"), []byte(report), 0o600))
		t.Logf("\n%s", report)
		assert.Empty(t, c.failures(), "pods with a wrong status")
		assert.Empty(t, leaks(before, after), "what is left when all pods are gone")
		expected, err := os.ReadFile("testdata/expected.txt")
		require.NoError(t, err)
		if runtime.process != 0 { // containerd is there to compare with
			assert.Empty(t, failures.unexpected(string(expected)), "calls that fail without a known reason")
		}
	})
}

// startKubelet starts the kubelet, waits until its Node is ready, and returns the path of
// its log.
func startKubelet(t *testing.T, programs, out string, r *runtimeUnderTest, cluster *kubetest.APIServer) string {
	t.Helper()
	dir := r.dir
	parent := cmp.Or(r.cgroupParent, "/"+filepath.Base(dir)+"-kubelet")
	makeCgroups(t, parent)
	cert, key := cluster.Certificate("node", "")
	config := filepath.Join(dir, "kubelet.yaml")
	_, port := splitAddress(t, kubetest.FreeAddress(t))
	_, healthz := splitAddress(t, kubetest.FreeAddress(t))
	require.NoError(t, os.WriteFile(config, fmt.Appendf(nil, `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
address: 127.0.0.1
port: %s
healthzPort: %s
failCgroupV1: false
cgroupDriver: cgroupfs
cgroupRoot: %s
failSwapOn: false
makeIPTablesUtilChains: false
containerRuntimeEndpoint: %s
podLogsDir: %s
resolvConf: /etc/resolv.conf
clusterDomain: cluster.local
authentication: {anonymous: {enabled: false}, webhook: {enabled: true}, x509: {clientCAFile: %s}}
authorization: {mode: Webhook}
tlsCertFile: %s
tlsPrivateKeyFile: %s
evictionHard: {memory.available: 50Mi, nodefs.available: 1%%, imagefs.available: 1%%}
imageGCHighThresholdPercent: 100
`, port, healthz, parent, r.endpoint, filepath.Join(dir, "logs"), cluster.CAFile(), cert, key), 0o600))
	file, err := os.Create(filepath.Join(out, "kubelet.log"))
	require.NoError(t, err)
	kubelet := exec.Command(filepath.Join(programs, "kubelet"), "--config="+config, //nolint:gosec // the program that the caller names
		"--kubeconfig="+cluster.Kubeconfig("system:node:"+nodeName, "system:nodes"), "--hostname-override="+nodeName,
		"--root-dir="+filepath.Join(dir, "kubelet"), "--cert-dir="+filepath.Join(dir, "pki"))
	kubelet.Stdout, kubelet.Stderr = file, file
	kubelet.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	require.NoError(t, kubelet.Start())
	t.Cleanup(func() {
		_ = kubelet.Process.Signal(syscall.SIGTERM)
		_ = kubelet.Wait()
		_ = file.Close()
		unmountBelow(dir)
		containerdtest.RemoveCgroups(parent)
	})
	require.Eventually(t, func() bool {
		node, err := cluster.Admin().CoreV1().Nodes().Get(t.Context(), nodeName, metav1.GetOptions{})
		if err != nil {
			return false
		}
		for _, c := range node.Status.Conditions {
			if c.Type == corev1.NodeReady {
				return c.Status == corev1.ConditionTrue
			}
		}
		return false
	}, 2*time.Minute, 200*time.Millisecond, "the node is not ready; see %s", file.Name())
	return file.Name()
}
