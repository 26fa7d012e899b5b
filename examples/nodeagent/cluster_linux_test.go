package main

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/yaml"

	"github.com/sublet-dev/agent/internal/containerdtest"
	"github.com/sublet-dev/agent/internal/kubetest"
)

// clusterNode is a node of a cluster with a real API server: nodeagent on containerd. There are
// no controllers; the test is the scheduler, and what binds and attaches volumes.
type clusterNode struct {
	*world
	server *kubetest.APIServer
	admin  kubernetes.Interface
	ctx    context.Context //nolint:containedctx // of the test
}

func newClusterNode(t *testing.T) *clusterNode {
	t.Helper()
	return newNodeOf(t, kubetest.Start(t))
}

// newClusterNodeWithServiceAccounts is one of an API server that knows service accounts.
func newClusterNodeWithServiceAccounts(t *testing.T) *clusterNode {
	t.Helper()
	return newNodeOf(t, kubetest.StartWithServiceAccounts(t))
}

func newNodeOf(t *testing.T, server *kubetest.APIServer) *clusterNode {
	t.Helper()
	w := newWorld(t, containerdtest.Start(t))
	w.extra = []string{"-kubeconfig", server.Kubeconfig("system:node:node", "system:nodes"), "-listen-https=", "-eviction-hard=none", "-image-gc-high-threshold=100"}
	return &clusterNode{world: w, server: server, admin: server.Admin(), ctx: t.Context()}
}

// decode makes an object of YAML.
func decode[T any](t *testing.T, text string) *T {
	t.Helper()
	object := new(T)
	require.NoError(t, yaml.UnmarshalStrict([]byte(text), object), text)
	return object
}

// createPod creates a pod on the node with the end of a spec.
func (c *clusterNode) createPod(name, spec string) {
	c.t.Helper()
	pod := decode[corev1.Pod](c.t, fmt.Sprintf(`metadata: {name: %s, namespace: default}
spec:
  nodeName: node
  automountServiceAccountToken: false
  terminationGracePeriodSeconds: 2
%s`, name, spec))
	_, err := c.admin.CoreV1().Pods("default").Create(c.ctx, pod, metav1.CreateOptions{})
	require.NoError(c.t, err)
}

// phase waits until the API server has a pod in a phase; "" is one that does not exist.
func (c *clusterNode) phase(name string, want corev1.PodPhase) {
	c.t.Helper()
	c.eventually(2*longRunTime, func() error {
		pod, err := c.admin.CoreV1().Pods("default").Get(c.ctx, name, metav1.GetOptions{})
		if got := pod.Status.Phase; got != want {
			return fmt.Errorf("pod is %q, want %q: %v, %w", got, want, pod.Status.ContainerStatuses, err)
		}
		return nil
	})
}

// hasEvent waits until a pod has an event with a reason.
func (c *clusterNode) hasEvent(name, reason string) {
	c.t.Helper()
	c.eventually(longRunTime, func() error {
		events, err := c.admin.CoreV1().Events("default").List(c.ctx, metav1.ListOptions{FieldSelector: "involvedObject.name=" + name + ",reason=" + reason})
		if err != nil || len(events.Items) == 0 {
			return fmt.Errorf("pod %s has no event %s: %w", name, reason, err)
		}
		return nil
	})
}
