package kube_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/sublet-dev/agent"
	"github.com/sublet-dev/agent/internal/kubetest"
	"github.com/sublet-dev/agent/kube"
	"github.com/sublet-dev/agent/podsource"
	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/runtime/embedded/simulated"
)

// realCluster is an agent with a simulated runtime on a real API server, with the rights
// of a node.
type realCluster struct {
	t      *testing.T
	server *kubetest.APIServer
	admin  kubernetes.Interface
	static *podsource.Memory
}

func startRealCluster(t *testing.T) *realCluster {
	server := kubetest.Start(t)
	c := &realCluster{t: t, server: server, admin: server.Admin(), static: podsource.NewMemory()}
	k, err := kube.New(kube.Config{Client: server.Node(nodeName), NodeName: nodeName})
	require.NoError(t, err)
	opts, err := k.NodeOptions(kube.NodeConfig{}, "")
	require.NoError(t, err)
	a, err := agent.New(append(opts, agent.WithSimulatedRuntime(), agent.WithSource("memory", c.static))...)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- a.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-done)
	})
	return c
}

func (c *realCluster) create(pod *corev1.Pod) *corev1.Pod {
	c.t.Helper()
	pod.UID, pod.Status = "", corev1.PodStatus{}
	created, err := c.admin.CoreV1().Pods("default").Create(c.t.Context(), pod, metav1.CreateOptions{})
	require.NoError(c.t, err)
	return created
}

func (c *realCluster) get(name string) *corev1.Pod {
	pod, err := c.admin.CoreV1().Pods("default").Get(c.t.Context(), name, metav1.GetOptions{})
	if err != nil {
		return nil
	}
	return pod
}

// eventually waits until the pod is as it should be; nil is one that does not exist.
func (c *realCluster) eventually(name string, is func(pod *corev1.Pod) bool) *corev1.Pod {
	c.t.Helper()
	require.EventuallyWithT(c.t, func(collect *assert.CollectT) {
		pod := c.get(name)
		if !is(pod) {
			collect.Errorf("pod %s is %+v", name, pod)
		}
	}, time.Minute, 50*time.Millisecond)
	return c.get(name)
}

func isRunning(pod *corev1.Pod) bool { return pod != nil && pod.Status.Phase == corev1.PodRunning }
func isDeleted(pod *corev1.Pod) bool { return pod == nil }

// The life of pods on a real API server, with the Node authorizer and NodeRestriction. KU-6
func TestKube_RealAPIServer(t *testing.T) {
	c := startRealCluster(t)
	ctx := t.Context()

	t.Run("registers a ready node", func(t *testing.T) {
		require.Eventually(t, func() bool {
			node, err := c.admin.CoreV1().Nodes().Get(ctx, nodeName, metav1.GetOptions{})
			return err == nil && slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
				return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
			})
		}, time.Minute, 50*time.Millisecond)
		_, err := c.admin.CoordinationV1().Leases(corev1.NamespaceNodeLease).Get(ctx, nodeName, metav1.GetOptions{})
		require.NoError(t, err)
	})

	t.Run("runs, reports and deletes a pod", func(t *testing.T) {
		pod := newTestPod("a")
		pod.Spec.ReadinessGates = []corev1.PodReadinessGate{{ConditionType: "example.com/gate"}}
		c.create(pod)
		running := c.eventually("a", isRunning)
		require.Equal(t, running.Generation, running.Status.ObservedGeneration)
		require.Equal(t, corev1.ConditionFalse, conditionOf(running.Status.Conditions, corev1.PodReady).Status)
		gate := []byte(`{"status":{"conditions":[{"type":"example.com/gate","status":"True"}]}}`)
		_, err := c.admin.CoreV1().Pods("default").Patch(ctx, "a", "application/strategic-merge-patch+json", gate, metav1.PatchOptions{}, "status")
		require.NoError(t, err)
		c.eventually("a", func(pod *corev1.Pod) bool {
			ready := conditionOf(pod.Status.Conditions, corev1.PodReady)
			return ready.Status == corev1.ConditionTrue && conditionOf(pod.Status.Conditions, "example.com/gate") != nil
		})
		require.NoError(t, c.admin.CoreV1().Pods("default").Delete(ctx, "a", metav1.DeleteOptions{}))
		c.eventually("a", isDeleted)
	})

	t.Run("shortens the grace period", func(t *testing.T) {
		pod := newStubbornPod("stubborn")
		long := int64(600)
		pod.Spec.TerminationGracePeriodSeconds = &long
		c.create(pod)
		c.eventually("stubborn", isRunning)
		require.NoError(t, c.admin.CoreV1().Pods("default").Delete(ctx, "stubborn", metav1.DeleteOptions{}))
		c.eventually("stubborn", func(pod *corev1.Pod) bool { return pod != nil && pod.DeletionTimestamp != nil })
		short := int64(1)
		require.NoError(t, c.admin.CoreV1().Pods("default").Delete(ctx, "stubborn", metav1.DeleteOptions{GracePeriodSeconds: &short}))
		c.eventually("stubborn", isDeleted)
	})

	t.Run("finishes a pod", func(t *testing.T) {
		pod := newTestPod("finished")
		pod.Spec.RestartPolicy = corev1.RestartPolicyNever
		pod.Annotations = map[string]string{simulated.ScriptPrefix + "run-for": "100ms", simulated.ScriptPrefix + "exit-code": "0"}
		c.create(pod)
		c.eventually("finished", func(pod *corev1.Pod) bool { return pod != nil && pod.Status.Phase == corev1.PodSucceeded })
		require.NoError(t, c.admin.CoreV1().Pods("default").Delete(ctx, "finished", metav1.DeleteOptions{}))
		c.eventually("finished", isDeleted)
	})

	t.Run("keeps a mirror pod", func(t *testing.T) {
		c.static.Put(newTestPod("static"))
		mirror := c.eventually("static", isRunning)
		require.NotEmpty(t, mirror.Annotations[podspec.AnnotationMirror])
		require.NoError(t, c.admin.CoreV1().Pods("default").Delete(ctx, "static", metav1.DeleteOptions{}))
		c.eventually("static", func(pod *corev1.Pod) bool { return isRunning(pod) && pod.UID != mirror.UID })
		c.static.Delete("default", "static")
		c.eventually("static", isDeleted)
	})

	t.Run("records events", func(t *testing.T) {
		require.Eventually(t, func() bool {
			events, err := c.admin.CoreV1().Events("default").List(ctx, metav1.ListOptions{FieldSelector: "involvedObject.name=a"})
			return err == nil && len(events.Items) > 0
		}, time.Minute, 100*time.Millisecond)
	})

	t.Run("catches up after a restart of the server", func(t *testing.T) {
		c.create(newTestPod("before"))
		c.eventually("before", isRunning)
		c.server.StopServer()
		c.static.Put(newTestPod("static-2"))
		c.server.StartServer()
		c.create(newTestPod("after"))
		c.eventually("after", isRunning)
		c.eventually("static-2", isRunning)
		c.eventually("before", isRunning)
	})
}
