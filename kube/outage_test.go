package kube_test

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/internal/kubetest"
	"github.com/sublet-dev/agent/runtime/embedded/simulated"
)

// envOutage is how long the API server stays away after each step. Default: 2s.
const envOutage = "SUBLET_KUBE_OUTAGE"

// outage is a cluster with one node, all of whose parts can be killed.
type outage struct {
	t       *testing.T
	server  *kubetest.APIServer
	admin   kubernetes.Interface
	machine *testMachine
	agent   *agentProcess
	away    time.Duration
}

func startOutage(t *testing.T) *outage {
	server := kubetest.Start(t)
	o := &outage{t: t, server: server, admin: server.Admin(), machine: newTestMachine(t), away: 2 * time.Second}
	if text := os.Getenv(envOutage); text != "" {
		var err error
		o.away, err = time.ParseDuration(text)
		require.NoError(t, err)
	}
	o.agent = newAgentProcess(t, server, o.machine.socket)
	o.agent.start()
	return o
}

// create creates a pod of the node that needs a ConfigMap of the API server.
func (o *outage) create(name string, restart corev1.RestartPolicy, script map[string]string) {
	o.t.Helper()
	pod := newTestPod(name)
	pod.UID, pod.Status = "", corev1.PodStatus{}
	pod.Spec.RestartPolicy = restart
	pod.Annotations = map[string]string{}
	for key, value := range script {
		pod.Annotations[simulated.ScriptPrefix+key] = value
	}
	pod.Spec.Containers[0].EnvFrom = []corev1.EnvFromSource{{ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "settings"}}}}
	_, err := o.admin.CoreV1().Pods("default").Create(o.t.Context(), pod, metav1.CreateOptions{})
	require.NoError(o.t, err)
}

func (o *outage) delete(name string, grace int64) {
	o.t.Helper()
	require.NoError(o.t, o.admin.CoreV1().Pods("default").Delete(o.t.Context(), name, metav1.DeleteOptions{GracePeriodSeconds: &grace}))
}

// runs waits until exactly these pods have a running container.
func (o *outage) runs(want ...string) {
	o.t.Helper()
	require.EventuallyWithT(o.t, func(c *assert.CollectT) {
		var running []string
		for name, container := range o.machine.containers() {
			if container.GetState() == v1.ContainerState_CONTAINER_RUNNING {
				running = append(running, name)
			}
		}
		assert.ElementsMatch(c, want, running)
	}, 2*time.Minute, 50*time.Millisecond)
	o.machine.starts.requireOnce(o.t)
}

// hasRightStatuses waits until the API server has exactly these running pods with the
// containers that they have in the runtime, and returns how long it took.
func (o *outage) hasRightStatuses(running ...string) time.Duration {
	o.t.Helper()
	start := time.Now()
	require.EventuallyWithT(o.t, func(c *assert.CollectT) {
		pods, err := o.admin.CoreV1().Pods("default").List(context.Background(), metav1.ListOptions{})
		if !assert.NoError(c, err) {
			return
		}
		containers := o.machine.containers()
		var names []string
		for i := range pods.Items {
			pod := &pods.Items[i]
			if pod.Status.Phase == corev1.PodSucceeded {
				continue
			}
			names = append(names, pod.Name)
			assert.Equal(c, corev1.PodRunning, pod.Status.Phase, pod.Name)
			if !assert.Len(c, pod.Status.ContainerStatuses, 1, pod.Name) {
				continue
			}
			st := pod.Status.ContainerStatuses[0]
			_, id, _ := strings.Cut(st.ContainerID, "://")
			assert.Equal(c, containers[pod.Name].GetId(), id, pod.Name)
			assert.Equal(c, containers[pod.Name].GetState() == v1.ContainerState_CONTAINER_RUNNING, st.State.Running != nil, pod.Name)
		}
		assert.ElementsMatch(c, running, names)
	}, 2*time.Minute, 50*time.Millisecond)
	o.machine.starts.requireOnce(o.t)
	return time.Since(start)
}

// hasEvent waits until the agent has recorded an event of a pod.
func (o *outage) hasEvent(pod, reason string) {
	o.t.Helper()
	selector := fields.Set{"involvedObject.name": pod, "reason": reason}.String()
	require.EventuallyWithT(o.t, func(c *assert.CollectT) {
		events, err := o.admin.CoreV1().Events("default").List(context.Background(), metav1.ListOptions{FieldSelector: selector})
		if assert.NoError(c, err) {
			assert.NotEmpty(c, events.Items)
		}
	}, 2*time.Minute, 20*time.Millisecond)
}

// The API server is away while pods crash, the agent is killed, and the machine boots
// again without its pods. KU-2
func TestKube_RealAPIServerOutage(t *testing.T) {
	o := startOutage(t)
	ctx := t.Context()
	_, err := o.admin.CoreV1().ConfigMaps("default").Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "settings"}, Data: map[string]string{"A": "1"}}, metav1.CreateOptions{})
	require.NoError(t, err)
	var running []string
	for i := range 10 {
		running = append(running, fmt.Sprint("web-", i))
		o.create(running[i], corev1.RestartPolicyAlways, nil)
	}
	o.create("finished", corev1.RestartPolicyNever, map[string]string{"run-for": "100ms", "exit-code": "0"})
	o.create("long-job", corev1.RestartPolicyOnFailure, map[string]string{"run-for": "1h"})
	o.create("deleted", corev1.RestartPolicyAlways, nil)
	o.create("slow", corev1.RestartPolicyAlways, map[string]string{"ignore-term": "true"})
	running = append(running, "long-job")
	o.runs(append(running, "deleted", "slow")...)
	o.hasRightStatuses(append(running, "deleted", "slow")...)
	require.Eventually(t, func() bool {
		pod, err := o.admin.CoreV1().Pods("default").Get(ctx, "finished", metav1.GetOptions{})
		return err == nil && pod.Status.Phase == corev1.PodSucceeded
	}, time.Minute, 50*time.Millisecond)

	t.Log("the API server goes, with one pod that is terminating; pods crash")
	o.delete("slow", 1)
	o.hasEvent("slow", "Killing")
	o.server.StopServer()
	before := o.machine.containers()
	for _, name := range running[:3] {
		o.machine.crash(before[name].GetId())
	}
	time.Sleep(o.away) // the length of the outage is a parameter
	o.runs(append(running, "deleted")...)

	t.Log("the agent is killed; a pod crashes before it is back")
	o.agent.kill()
	o.machine.crash(o.machine.containers()[running[4]].GetId())
	o.agent.start()
	time.Sleep(o.away)
	o.runs(append(running, "deleted")...)
	after := o.machine.containers()
	for _, name := range append(running[5:], "deleted") {
		require.Equal(t, before[name].GetId(), after[name].GetId(), "a restart of the agent leaves %s alone", name)
	}

	t.Log("the API server is back")
	o.server.StartServer()
	took := o.hasRightStatuses(append(running, "deleted")...)
	t.Logf("statuses were right %v after the API server was ready", took)

	t.Log("it goes again, with a pod deleted by force while the agent was dead, and the machine boots again")
	o.agent.kill()
	o.delete("deleted", 0)
	o.server.StopServer()
	o.machine.halt()
	o.machine.boot()
	o.agent.start()
	time.Sleep(o.away)
	o.runs(append(running, "deleted")...) // that it was deleted cannot be known
	require.Zero(t, o.machine.starts.startsOf("finished"), "a pod that has finished runs again")

	o.server.StartServer()
	took = o.hasRightStatuses(running...)
	t.Logf("after the boot, statuses were right %v after the API server was ready", took)
	o.runs(running...)
	require.Zero(t, o.machine.starts.startsOf("finished"), "a pod that has finished runs again")
	for _, name := range running {
		require.Equal(t, 1, o.machine.starts.startsOf(name), name)
	}
}
