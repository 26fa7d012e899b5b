package kube_test

import (
	"context"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sublet-dev/agent"
	"github.com/sublet-dev/agent/internal/kubetest"
	"github.com/sublet-dev/agent/kube"
	"github.com/sublet-dev/agent/node"
)

// runNode runs an agent that is a whole node, on a runtime that has nothing yet, as after a boot.
func runNode(t *testing.T, fake *kubetest.Fake, dir string) (a *agent.Agent, stop func()) {
	t.Helper()
	opts, err := newTestKube(t, fake).NodeOptions(kube.NodeConfig{}, filepath.Join(dir, "api"))
	require.NoError(t, err)
	a, err = agent.New(append(opts, agent.WithSimulatedRuntime(), agent.WithRootDir(filepath.Join(dir, "root")),
		agent.WithNode(node.Config{Addresses: func() ([]corev1.NodeAddress, error) { return nil, nil }}))...)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- a.Run(ctx) }()
	return a, func() {
		cancel()
		require.NoError(t, <-done)
	}
}

// phases returns the phases of the pods of an agent.
func phases(a *agent.Agent) map[string]corev1.PodPhase {
	synctest.Wait()
	all := map[string]corev1.PodPhase{}
	for _, pod := range a.Pods() {
		all[pod.Name] = pod.Status.Phase
	}
	return all
}

// newSelective returns a Node with a label of an administrator, and a pod that selects it.
func newSelective() (*corev1.Node, *corev1.Pod) {
	registered := &corev1.Node{}
	registered.Name, registered.UID, registered.Labels = nodeName, "uid-of-1", map[string]string{"disk": "ssd"}
	pod := newTestPod("db")
	pod.Spec.NodeSelector = map[string]string{"disk": "ssd"}
	return registered, pod
}

// KU-12: a pod with a node selector for a label that others have set starts after a boot without the API server.
func TestNode_LabelsOutliveTheProcess(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		fake := kubetest.NewFake(t)
		var away atomic.Bool
		fake.Intercept = func(w http.ResponseWriter, _ *http.Request) bool {
			if away.Load() {
				kubetest.WriteError(w, http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable)
			}
			return away.Load()
		}
		registered, pod := newSelective()
		fake.Put("nodes", registered)
		fake.Put("pods", pod)
		a, stop := runNode(t, fake, dir)
		time.Sleep(30 * time.Second)
		require.Equal(t, map[string]corev1.PodPhase{"db": corev1.PodRunning}, phases(a))
		stop()

		away.Store(true)
		a, stop = runNode(t, fake, dir)
		time.Sleep(30 * time.Second)
		assert.Equal(t, map[string]corev1.PodPhase{"db": corev1.PodRunning}, phases(a))
		away.Store(false)
		time.Sleep(time.Minute)
		stop()
	})
	info, err := os.Stat(filepath.Join(dir, "api", "node.json"))
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o600), info.Mode())
}

// KU-12: a pod that the API server tells of before the Node is not judged without its labels.
func TestNode_PodsWaitForTheNode(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		fake := kubetest.NewFake(t)
		var slow atomic.Bool
		fake.Intercept = func(w http.ResponseWriter, r *http.Request) bool {
			isNode := strings.HasPrefix(r.URL.Path, "/api/v1/nodes")
			if slow.Load() && isNode {
				kubetest.WriteError(w, http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable)
				return true
			}
			return false
		}
		registered, pod := newSelective()
		fake.Put("nodes", registered)
		fake.Put("pods", pod)
		slow.Store(true)
		a, stop := runNode(t, fake, dir)
		time.Sleep(30 * time.Second)
		assert.Empty(t, phases(a))
		slow.Store(false)
		time.Sleep(time.Minute)
		assert.Equal(t, map[string]corev1.PodPhase{"db": corev1.PodRunning}, phases(a))
		stop()
	})
}
