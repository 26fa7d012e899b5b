package agent_test

import (
	"context"
	"path/filepath"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent"
	"github.com/sublet-dev/agent/devices"
	"github.com/sublet-dev/agent/internal/agenttest"
	"github.com/sublet-dev/agent/podsource"
	"github.com/sublet-dev/agent/runtime"
)

// cameras is a plugin whose devices need nothing.
type cameras struct{}

func (cameras) Allocate(_ context.Context, ids []string) (runtime.Injection, error) {
	return runtime.Injection{Env: map[string]string{"CAMERA": ids[0]}}, nil
}

// An injector that provides devices needs no other option: they are in the status of the
// node, pods without one are rejected, and their health is reported with the pod.
func TestWithInjector_ProvidesDevices(t *testing.T) {
	const camera corev1.ResourceName = "factory.example/camera"
	m, err := devices.New(devices.Config{StateFile: filepath.Join(t.TempDir(), "devices.json")})
	require.NoError(t, err)
	set := func(healthy bool) {
		require.NoError(t, m.Update(camera, cameras{}, []devices.Device{{ID: "front", Healthy: healthy}}))
	}
	set(true)
	withCamera := func(name string) *corev1.Pod {
		pod := agenttest.Pod(name)
		pod.Spec.Containers[0].Resources.Limits = corev1.ResourceList{camera: resource.MustParse("1")}
		pod.Spec.Containers[0].Resources.Requests = pod.Spec.Containers[0].Resources.Limits
		return pod
	}
	var source *podsource.Memory
	check := func(a *agent.Agent) {
		status := func(name string) corev1.PodStatus {
			time.Sleep(5 * time.Second)
			synctest.Wait()
			pod, err := a.Pod("default", name)
			require.NoError(t, err)
			return pod.Status
		}
		is := func(health corev1.ResourceHealthStatus) {
			t.Helper()
			first := status("first")
			require.Equal(t, corev1.PodRunning, first.Phase, "%s: the pod keeps its device", first.Message)
			assert.Equal(t, []corev1.ResourceStatus{{Name: camera, Resources: []corev1.ResourceHealth{{ResourceID: "front", Health: health}}}},
				first.ContainerStatuses[0].AllocatedResourcesStatus)
		}
		is(corev1.ResourceHealthStatusHealthy)
		source.Put(withCamera("second"))
		assert.Equal(t, "OutOf"+string(camera), status("second").Reason)
		set(false)
		is(corev1.ResourceHealthStatusUnhealthy)
		st, err := a.NodeStatus(context.Background())
		require.NoError(t, err)
		capacity, allocatable := st.Capacity[camera], st.Allocatable[camera]
		assert.Equal(t, []int64{1, 0}, []int64{capacity.Value(), allocatable.Value()})
		set(true)
		is(corev1.ResourceHealthStatusHealthy)
	}
	runSimulated(t, check, func() podsource.Source {
		source = podsource.NewMemory(withCamera("first"))
		return source
	}, agent.WithInjector(m))
}

// lamp is an injector of what is no resource of the node, and has a health.
type lamp struct {
	health atomic.Pointer[corev1.ResourceHealthStatus]
	notify func(types.UID)
}

func (*lamp) Inject(context.Context, *corev1.Pod, *corev1.Container, bool) (runtime.Injection, error) {
	return runtime.Injection{}, nil
}

func (l *lamp) ResourceHealth(*corev1.Pod, *corev1.Container) []corev1.ResourceStatus {
	return []corev1.ResourceStatus{{Name: "claim:lamp", Resources: []corev1.ResourceHealth{{ResourceID: "lamp", Health: *l.health.Load()}}}}
}

func (l *lamp) NotifyHealth(f func(types.UID)) { l.notify = f }

// A change of health that an injector notifies of is in the status at once.
func TestWithInjector_ReportsHealth(t *testing.T) {
	l := new(lamp)
	unknown := corev1.ResourceHealthStatusUnknown
	l.health.Store(&unknown)
	check := func(a *agent.Agent) {
		for _, health := range []corev1.ResourceHealthStatus{corev1.ResourceHealthStatusHealthy, corev1.ResourceHealthStatusUnhealthy} {
			l.health.Store(&health)
			pod, err := a.Pod("default", "web")
			require.NoError(t, err)
			l.notify(pod.UID)
			time.Sleep(time.Second)
			synctest.Wait()
			pod, err = a.Pod("default", "web")
			require.NoError(t, err)
			assert.Equal(t, l.ResourceHealth(nil, nil), pod.Status.ContainerStatuses[0].AllocatedResourcesStatus)
		}
	}
	runSimulated(t, check, func() podsource.Source { return podsource.NewMemory(agenttest.Pod("web")) }, agent.WithInjector(l))
}
