//go:build linux

package conformance

import (
	"cmp"
	"context"
	"net"
	"os"
	"os/exec"
	"path/filepath"
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
	envPrograms = "SUBLET_CONFORMANCE"
	envOut      = "SUBLET_CONFORMANCE_OUT"
	envFocus    = "SUBLET_CONFORMANCE_FOCUS"
	envSkip     = "SUBLET_CONFORMANCE_SKIP"
	envProcs    = "SUBLET_CONFORMANCE_PROCS"
	envAddress  = "SUBLET_CONFORMANCE_ADDRESS"
)

// kubeletPort is where some specs expect the API of a node.
const kubeletPort = "10250"

// nodeAddress returns the address of the node and where it listens. The name of the node is its address, so that the API
// server reaches it without resolving a name.
func nodeAddress(t *testing.T) (name, listen string) {
	t.Helper()
	name = cmp.Or(os.Getenv(envAddress), "127.0.0.1")
	ip := net.ParseIP(name)
	require.NotNil(t, ip, "%s: %q is no IP address", envAddress, name)
	if ip.IsLoopback() {
		return name, kubetest.FreeAddress(t)
	}
	return name, net.JoinHostPort(name, kubeletPort)
}

// Every spec passes but those in testdata/expected.txt, which has the reasons.
func TestConformance(t *testing.T) {
	t.Run("nodeagent", func(t *testing.T) {
		programs := os.Getenv(envPrograms)
		if programs == "" {
			t.Skipf("%s names no directory of Kubernetes' programs; test/conformance/run builds them as root", envPrograms)
		}
		out := cmp.Or(os.Getenv(envOut), t.TempDir())
		node := containerdtest.Start(t)
		cluster := kubetest.StartCluster(t, programs)
		suite := filepath.Join(programs, "e2e.test")
		repositories := newImages(t, node.Registry, programs).pushAll(suite)
		startAgent(t, node, cluster, filepath.Join(out, "nodeagent.log"))

		focus := cmp.Or(os.Getenv(envFocus), `\[NodeConformance\]`)
		ginkgo := exec.Command(filepath.Join(programs, "ginkgo"), "-procs="+cmp.Or(os.Getenv(envProcs), "4"), "-timeout=6h", "-no-color", "-silence-skips",
			"-focus="+focus, "-skip="+cmp.Or(os.Getenv(envSkip), `\[Serial\]|\[Slow\]|\[Disruptive\]`), "-output-dir="+out, "-junit-report=junit.xml",
			suite, "--", "--provider=skeleton", "--kubeconfig="+cluster.Kubeconfig("admin", "system:masters"), "--num-nodes=1",
			"--dump-logs-on-failure=false", "--node-os-distro=custom")
		ginkgo.Env = append(os.Environ(), "KUBE_TEST_REPO_LIST="+repositories)
		log, err := os.Create(filepath.Join(out, "e2e.log"))
		require.NoError(t, err)
		defer func() { _ = log.Close() }()
		ginkgo.Stdout, ginkgo.Stderr = log, log
		t.Logf("the output of the suite is in %s", log.Name())
		errSuite := ginkgo.Run() // the report has what failed

		report, err := os.Open(filepath.Join(out, "junit.xml"))
		require.NoError(t, err, "the suite did not run: %v", errSuite)
		defer func() { _ = report.Close() }()
		results, err := readResults(report)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(out, "results.txt"), []byte(results.table()), 0o600))
		t.Logf("\n%s", results.table())
		expected, err := os.ReadFile("testdata/expected.txt")
		require.NoError(t, err)
		assert.Empty(t, results.unexpected(string(expected)), "specs that fail without a known reason, or pass in spite of one")
	})
}

// startAgent starts the agent as an operator would, and waits until its Node is ready.
func startAgent(t *testing.T, node *containerdtest.Node, cluster *kubetest.APIServer, log string) {
	t.Helper()
	binary := filepath.Join(t.TempDir(), "nodeagent")
	output, err := exec.Command("go", "build", "-o", binary, "../../examples/nodeagent").CombinedOutput()
	require.NoError(t, err, "%s", output)
	nodeName, listen := nodeAddress(t)
	cert, key := cluster.Certificate("node", "", net.ParseIP(nodeName))
	agent := exec.Command(binary,
		"-kubeconfig", cluster.Kubeconfig("system:node:"+nodeName, "system:nodes"), "-node-name", nodeName, "-node-ip", nodeName,
		"-tls-cert-file", cert, "-tls-private-key-file", key, "-client-ca-file", cluster.CAFile(), "-listen", "", "-listen-https", listen,
		"-runtime-endpoint", node.Endpoint(), "-root-dir", filepath.Join(node.Shared, "agent"), "-pod-logs-dir", filepath.Join(node.Shared, "logs"),
		"-cgroup-root", node.CgroupParent, "-image-gc-high-threshold", "100", "-eviction-hard", "memory.available<100Mi,nodefs.available<1%,imagefs.available<1%")
	file, err := os.Create(log)
	require.NoError(t, err)
	agent.Stdout, agent.Stderr = file, file
	require.NoError(t, agent.Start())
	t.Cleanup(func() {
		_ = agent.Process.Signal(syscall.SIGTERM)
		_ = agent.Wait()
		_ = file.Close()
	})
	start := time.Now()
	require.Eventually(t, func() bool { return isReady(t.Context(), cluster, nodeName) }, 2*time.Minute, 100*time.Millisecond, "the node is not ready; see %s", log)
	t.Logf("the node is ready after %v", time.Since(start).Round(100*time.Millisecond))
}

func isReady(ctx context.Context, cluster *kubetest.APIServer, nodeName string) bool {
	node, err := cluster.Admin().CoreV1().Nodes().Get(ctx, nodeName, metav1.GetOptions{})
	if err != nil {
		return false
	}
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}
