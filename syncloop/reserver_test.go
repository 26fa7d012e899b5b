package syncloop

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/sublet-dev/agent/admission"
	"github.com/sublet-dev/agent/devices"
	"github.com/sublet-dev/agent/podsource"
	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/podworkers"
	"github.com/sublet-dev/agent/runtime"
	"github.com/sublet-dev/agent/topology"
)

var _ Reserver = (*topology.Manager)(nil)

const gpu = corev1.ResourceName("example.com/gpu")

type gpuPlugin struct{}

func (gpuPlugin) Allocate(context.Context, []string) (runtime.Injection, error) {
	return runtime.Injection{}, nil
}

// withGPUs is a pod that requests devices and memory.
func withGPUs(count, memory string) func(*Pod) {
	return func(p *Pod) {
		list := corev1.ResourceList{corev1.ResourceMemory: resource.MustParse(memory)}
		if count != "" {
			list[gpu] = resource.MustParse(count)
		}
		p.Spec.Containers = []corev1.Container{{Name: "c", Resources: corev1.ResourceRequirements{Requests: list, Limits: list}}}
	}
}

// gpuNode is a node with 10Gi and two devices near to one NUMA node, which are set aside for the pods that are
// admitted.
func gpuNode(t *testing.T) (*pods, *devices.Manager) {
	t.Helper()
	m, err := devices.New(devices.Config{StateFile: t.TempDir() + "/devices.json", NUMANodes: topology.NewSet(0)})
	require.NoError(t, err)
	require.NoError(t, m.Update(gpu, gpuPlugin{}, []devices.Device{{ID: "one", Healthy: true, NUMANodes: []int64{0}}, {ID: "two", Healthy: true, NUMANodes: []int64{0}}}))
	reserver, err := topology.New(topology.Config{Policy: topology.SingleNUMANode, Nodes: topology.NewSet(0), Providers: []topology.Provider{m}})
	require.NoError(t, err)
	fits, err := admission.New(admission.Config{Allocatable: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("10Gi")}, Devices: m.Allocatable})
	require.NoError(t, err)
	return newPods(t, func(c *PodManagerConfig) { c.Admitters, c.Preemptor = []Admitter{fits, reserver}, fits }), m
}

// free returns how many devices another pod could get.
func free(m *devices.Manager) (n int) {
	for count := range 3 {
		probe := newPod("probe", withGPUs(fmt.Sprint(count+1), "1"))
		if err := m.Reserve(probe, &probe.Spec.Containers[0], topology.NewSet(0)); err == nil {
			n = count + 1
		}
		_ = m.Release(context.Background(), probe.UID)
	}
	return n
}

// SL-12: a pod that is not preempted after all keeps what was set aside for it, and no other pod gets that.
func TestPodManager_DecisionsFreeNothing(t *testing.T) {
	p, m := gpuNode(t)
	started := newPod("a", withGPUs("1", "4Gi"))
	p.do(podsource.Add, started, newPod("b", withGPUs("1", "4Gi")))
	p.inState(podworkers.Syncing, "a", "b")
	_, err := m.Inject(t.Context(), started, &started.Spec.Containers[0], false)
	require.NoError(t, err)
	assert.Zero(t, free(m))
	got := p.do(podsource.Add, newPod("c", critical, withGPUs("2", "4Gi")))
	require.Len(t, got, 1)
	assert.Contains(t, got[0], "refuse c: TopologyAffinityError")
	assert.Zero(t, free(m))
	assert.Empty(t, statusesWithReason(p, podspec.ReasonPreempted))
}

// SL-12: what a decision promises is what the pod gets when its victims have ended, and what it has been
// promised stays so when another pod that waits starts before it.
func TestPodManager_KeepsWhatItHasPromised(t *testing.T) {
	p, m := gpuNode(t)
	p.do(podsource.Add, newPod("a", withGPUs("", "5Gi")), newPod("b", withGPUs("", "5Gi")))
	p.inState(podworkers.Syncing, "a", "b")
	require.Contains(t, p.do(podsource.Add, newPod("c", critical, withGPUs("1", "5Gi"))), "blocked c: "+waitingFor+"ns/a")
	p.inState(podworkers.Terminating, "a")
	assert.Equal(t, 1, free(m))
	require.Contains(t, p.do(podsource.Add, newPod("d", critical, withGPUs("1", "5Gi"))), "blocked d: "+waitingFor+"ns/a, ns/b")
	p.inState(podworkers.Terminating, "b")
	assert.Zero(t, free(m))

	assert.Equal(t, []string{"create c "}, p.finishes("a", preemptedBy()))
	assert.Zero(t, free(m), "d waits")
	p.inState(podworkers.Syncing, "c")
	assert.Equal(t, []string{"create d "}, p.finishes("b", preemptedBy()))
	assert.Zero(t, free(m))
}
