package agent_test

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/sublet-dev/agent"
	"github.com/sublet-dev/agent/internal/agenttest"
	"github.com/sublet-dev/agent/node"
	"github.com/sublet-dev/agent/podsource"
	"github.com/sublet-dev/agent/runtime"
)

// ownRuntime returns an agent with a runtime of the test's own.
func ownRuntime(t *testing.T, opts ...agent.Option) *agent.Agent {
	t.Helper()
	simulated, err := agent.New(agent.WithSimulatedRuntime(), agent.WithRootDir(t.TempDir()))
	require.NoError(t, err)
	a, err := agent.New(append(opts, agent.WithRuntime(simulated.Components().Runtime), agent.WithRootDir(t.TempDir()))...)
	require.NoError(t, err)
	return a
}

func TestNew_NodeIsThatOfTheMachine(t *testing.T) {
	n := ownRuntime(t).Components().Node
	assert.Positive(t, n.Capacity.Cpu().Value())
	assert.Positive(t, n.Capacity.Memory().Value())
	assert.Equal(t, n.Capacity.Memory().Value(), n.Allocatable.Memory().Value(), "nothing is reserved")
}

func TestNew_ExplicitNodeWins(t *testing.T) {
	one := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")}
	n := ownRuntime(t, agent.WithNode(node.Config{Allocatable: one})).Components().Node
	assert.Equal(t, one, n.Allocatable)
	n = ownRuntime(t, agent.WithNode(node.Config{Capacity: one})).Components().Node
	assert.Len(t, n.Allocatable, 1)
	n = ownRuntime(t, agent.WithNode(node.Config{PodsCgroupLimits: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("1Mi")}})).Components().Node
	assert.EqualValues(t, 1<<20, n.Allocatable.Memory().Value(), "pods are not admitted for more than their cgroup has")
}

func TestNew_SimulatedPodsAreNotBounded(t *testing.T) {
	a, err := agent.New(agent.WithSimulatedRuntime(), agent.WithRootDir(t.TempDir()))
	require.NoError(t, err)
	assert.Nil(t, a.Components().Node.Allocatable)
}

func TestAgent_NodeStatus(t *testing.T) {
	check := func(a *agent.Agent) {
		st, err := a.NodeStatus(context.Background())
		require.ErrorContains(t, err, "node address 192.0.2.1: not an address of an interface")
		assert.EqualValues(t, 7, st.Capacity.Pods().Value())
		assert.EqualValues(t, 10250, st.DaemonEndpoints.KubeletEndpoint.Port)
		assert.Contains(t, st.NodeInfo.ContainerRuntimeVersion, "://")
		assert.Contains(t, st.DeclaredFeatures, "RestartAllContainersOnContainerExits")
		assert.Contains(t, st.DeclaredFeatures, "Mine")
		assert.True(t, slices.IsSorted(st.DeclaredFeatures))
		ready := st.Conditions[len(st.Conditions)-1]
		assert.Equal(t, corev1.NodeReady, ready.Type)
		assert.Equal(t, corev1.ConditionTrue, ready.Status, ready.Message)
		assert.Len(t, a.Conditions(), 4)
	}
	runSimulated(t, check, func() podsource.Source { return podsource.NewMemory() },
		agent.WithNode(node.Config{IPs: []string{"192.0.2.1"}, MaxPods: 7, Port: 10250, DeclaredFeatures: []string{"Mine"}}))
}

// A node whose address changes: pods have the new one from their next sync on.
func TestWithNode_CurrentIPs(t *testing.T) {
	var ip atomic.Value
	ip.Store("192.0.2.1")
	var pods *podsource.Memory
	hostIP := func(a *agent.Agent, name string) string {
		for e := range a.Watch(context.Background()) {
			if e.Pod.Name == name {
				return e.Pod.Status.HostIP
			}
		}
		return ""
	}
	during := func(a *agent.Agent) {
		assert.Equal(t, "192.0.2.1", hostIP(a, "web"))
		ip.Store("192.0.2.2")
		pods.Put(agenttest.Pod("later"))
		time.Sleep(10 * time.Minute) // a pod that nothing happens to is synced every five minutes or so
		assert.Equal(t, "192.0.2.2", hostIP(a, "web"))
		assert.Equal(t, "192.0.2.2", hostIP(a, "later"))
	}
	source := func() podsource.Source {
		pods = podsource.NewMemory(agenttest.Pod("web"))
		return pods
	}
	runSimulated(t, during, source,
		agent.WithNode(node.Config{CurrentIPs: func() []string { return []string{ip.Load().(string)} }}))
}

// newHandlers reports that its runtime makes mounts read-only with all mounts below them.
type newHandlers struct{ traced }

func (r newHandlers) Status(ctx context.Context) (runtime.Status, error) {
	st, err := r.Runtime.Status(ctx)
	st.Handlers = []runtime.Handler{{RecursiveReadOnlyMounts: true}}
	return st, err
}

// The status of a mount says what the runtime has made of recursiveReadOnly.
func TestAgent_StatusOfRecursiveReadOnlyMounts(t *testing.T) {
	ifPossible := corev1.RecursiveReadOnlyIfPossible
	pod := agenttest.Pod("web")
	pod.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}
	pod.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "v", MountPath: "/v", ReadOnly: true, RecursiveReadOnly: &ifPossible}}
	statuses := runSimulated(t, nil, func() podsource.Source { return podsource.NewMemory(pod) }, agent.WithNode(node.Config{DisableCgroups: true}),
		agent.WithRuntimeFunc(func(c *agent.Components) (agent.Runtime, error) {
			rt, err := agent.NewRuntime(c)
			return newHandlers{traced{rt}}, err
		}))
	mounts := statuses.Of("web").ContainerStatuses[0].VolumeMounts
	require.Len(t, mounts, 1)
	assert.Equal(t, corev1.RecursiveReadOnlyEnabled, *mounts[0].RecursiveReadOnly)
}
