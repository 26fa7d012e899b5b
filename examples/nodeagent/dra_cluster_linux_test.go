package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const testDriver = "test-driver.cdi.k8s.io" // the name that it has by default

const clusterDeviceClaim = `metadata: {name: external, namespace: default}
spec: {devices: {requests: [{name: my-device, exactly: {deviceClassName: example}}]}}
`

// What the scheduler writes for a claim of two pods. The driver makes variables of the parameters.
const clusterAllocation = `
allocation:
  devices:
    results: [{request: my-device, driver: test-driver.cdi.k8s.io, pool: node, device: device-01}]
    config: [{source: FromClaim, requests: [my-device], opaque: {driver: test-driver.cdi.k8s.io, parameters: {answer: "42"}}}]
  nodeSelector: {nodeSelectorTerms: [{matchFields: [{key: metadata.name, operator: In, values: [node]}]}]}
`

// upstreamDRADriver returns the path of the DRA driver with which Kubernetes tests kubelets.
func upstreamDRADriver(t *testing.T) string {
	t.Helper()
	if program := os.Getenv("SUBLET_DRA_TEST_DRIVER"); program != "" {
		return program
	}
	program := filepath.Join(t.TempDir(), "dra-test-driver")
	out, err := exec.CommandContext(t.Context(), "../../internal/kubetest/apiserver/build.sh", program, "test/e2e/dra/test-driver").CombinedOutput()
	require.NoError(t, err, "%s", out)
	return program
}

// startUpstreamDriver starts the driver with the rights of an administrator.
func (c *clusterNode) startUpstreamDriver(program, registry string) (stop func()) {
	c.t.Helper()
	dir, err := os.MkdirTemp("", "dra")
	require.NoError(c.t, err)
	require.NoError(c.t, os.Mkdir(filepath.Join(dir, testDriver), 0o700))
	cmd := exec.Command(program, "kubelet-plugin", "--kubeconfig", c.server.Kubeconfig("admin", "system:masters"), "--node-name", "node",
		"--plugin-registration-path", registry, "--datadir", dir, "--cdi-dir", filepath.Join(filepath.Dir(c.node.Socket), "cdi"))
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	require.NoError(c.t, cmd.Start())
	stopped := false
	stop = func() {
		if !stopped {
			stopped = true
			_ = cmd.Process.Kill()
			_ = cmd.Wait() // killed: the error is what was asked for
			_ = os.RemoveAll(dir)
		}
	}
	c.t.Cleanup(stop)
	return stop
}

// allocate reserves a claim for pods, as the scheduler does.
func (c *clusterNode) allocate(pods ...string) {
	c.t.Helper()
	claims := c.admin.ResourceV1().ResourceClaims("default")
	claim, err := claims.Get(c.ctx, "external", metav1.GetOptions{})
	require.NoError(c.t, err)
	if claim.Status.Allocation == nil {
		claim.Status = *decode[resourcev1.ResourceClaimStatus](c.t, clusterAllocation)
	}
	for _, name := range pods {
		pod, err := c.admin.CoreV1().Pods("default").Get(c.ctx, name, metav1.GetOptions{})
		require.NoError(c.t, err)
		claim.Status.ReservedFor = append(claim.Status.ReservedFor, resourcev1.ResourceClaimConsumerReference{Resource: "pods", Name: name, UID: pod.UID})
	}
	_, err = claims.UpdateStatus(c.ctx, claim, metav1.UpdateOptions{})
	require.NoError(c.t, err)
}

// Pods of a cluster with a real API server get devices of the driver with which Kubernetes tests
// kubelets: it publishes ResourceSlices, and reads the claims itself. Pods keep their
// devices while agent and driver are killed, and the last one gives them back.
func TestRun_UpstreamDRATestDriver(t *testing.T) {
	c := newClusterNode(t)
	program := upstreamDRADriver(t)
	registry := filepath.Join(c.node.Shared, "registry")
	require.NoError(t, os.MkdirAll(registry, 0o700))
	c.extra = append(c.extra, "-dra-plugin-dir", registry)
	d := &draNode{world: c.world}
	c.start()
	c.eventually(longRunTime, func() error { _, err := c.admin.CoreV1().Nodes().Get(c.ctx, "node", metav1.GetOptions{}); return err })
	_, err := c.admin.ResourceV1().ResourceClaims("default").Create(c.ctx, decode[resourcev1.ResourceClaim](t, clusterDeviceClaim), metav1.CreateOptions{})
	require.NoError(t, err)
	create := func(name string) {
		t.Helper()
		c.createPod(name, fmt.Sprintf(`  resourceClaims: [{name: device, resourceClaimName: external}]
  containers:
  - name: main
    image: %s
    imagePullPolicy: IfNotPresent
    command: ["sh", "-c", "trap 'exit 0' TERM; sleep 1000000 & wait"]
    resources: {claims: [{name: device}]}
`, c.node.Busybox))
	}
	create("first")
	d.waits("first", "it has to be in status.allocation")
	c.allocate("first")
	d.waits("first", "the DRA driver is not registered: "+testDriver)
	stop := c.startUpstreamDriver(program, registry)
	c.phase("first", corev1.PodRunning)
	d.seesVariable("first", "user_answer", "42")
	c.eventually(longRunTime, func() error {
		slices, err := c.admin.ResourceV1().ResourceSlices().List(c.ctx, metav1.ListOptions{})
		if err != nil || len(slices.Items) != 1 || *slices.Items[0].Spec.NodeName != "node" || len(slices.Items[0].Spec.Devices) != 4 {
			return fmt.Errorf("ResourceSlices: %+v: %w", slices.Items, err)
		}
		return nil
	})
	create("second")
	d.waits("second", "it is not reserved for the pod")
	c.allocate("second")
	c.phase("second", corev1.PodRunning)
	before := c.identity()

	c.signal(syscall.SIGKILL)
	stop()
	c.start()
	c.eventually(longRunTime, func() error { return c.reportedRunning("first", "second") })
	require.Equal(t, before, c.identity(), "no container was restarted")
	stop = c.startUpstreamDriver(program, registry)
	released := func() {
		t.Helper()
		c.eventually(longRunTime, func() error {
			state, err := os.ReadFile(filepath.Join(c.root, "resourceclaims.json"))
			if strings.Contains(string(state), "external") {
				return errors.Join(fmt.Errorf("prepared: %s", state), err)
			}
			return err
		})
	}
	c.delete("first")
	c.delete("second")
	released()
	// The driver has forgotten what it prepared before it was killed. It prepares the claim again
	// for another pod, and cleans up after it.
	create("third")
	c.allocate("third")
	c.phase("third", corev1.PodRunning)
	d.seesVariable("third", "user_answer", "42")
	c.delete("third")
	released()
	published := func(n int) {
		t.Helper()
		c.eventually(2*longRunTime, func() error {
			slices, err := c.admin.ResourceV1().ResourceSlices().List(c.ctx, metav1.ListOptions{})
			if err != nil || len(slices.Items) != n {
				return fmt.Errorf("%d ResourceSlices, want %d: %w", len(slices.Items), n, err)
			}
			return nil
		})
	}
	published(1)
	// A driver that is killed for good leaves the socket of its registration, and what it has
	// published, which the node removes.
	stop()
	published(0)
	c.startUpstreamDriver(program, registry)
	published(1)
	files, err := filepath.Glob(filepath.Join(filepath.Dir(c.node.Socket), "cdi", "*"))
	require.NoError(t, err)
	require.Empty(t, files)
}

// delete deletes a pod and waits until the API server has it no more.
func (c *clusterNode) delete(name string) {
	c.t.Helper()
	require.NoError(c.t, c.admin.CoreV1().Pods("default").Delete(c.ctx, name, metav1.DeleteOptions{}))
	c.phase(name, "")
}
