package devices_test

import (
	"errors"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/devices"
	"github.com/sublet-dev/agent/topology"
)

// After a boot, or with another driver, devices may have other ids. A container that does not run
// gets those that there are; one that runs has what it has.
func TestInject_ReplacesMissingDevices(t *testing.T) {
	file := stateFile(t)
	m := newManager(t, file)
	require.NoError(t, m.Update(gpu, &fake{}, healthy("a", "b", "c")))
	one := pod("one", container("c", 2))
	require.Equal(t, "a,b", inject(t, m, one))

	m = newManager(t, file)
	require.Equal(t, "a,b", inject(t, m, one), "the plugin has not reported")
	plugin := &fake{}
	require.NoError(t, m.Update(gpu, plugin, healthy("a", "c")))
	injection, err := m.Inject(t.Context(), one, &one.Spec.Containers[0], true)
	require.NoError(t, err)
	require.Equal(t, "a,b", injection.Env["GPUS"], "it runs")
	require.Equal(t, "a,c", inject(t, m, one))
	require.Equal(t, "a,c", inject(t, m, one), "the same from then on")
	require.Equal(t, [][]string{{"a", "c"}}, plugin.allocated)

	m = newManager(t, file)
	require.Equal(t, "a,c", inject(t, m, one), "it was stored")
	require.NoError(t, m.Update(gpu, &fake{}, healthy("a", "c", "d")))
	require.Equal(t, "d", inject(t, m, pod("two", container("c", 1))))
}

// A container whose devices are missing waits if there are too few others, and keeps the rest of
// its own meanwhile.
func TestInject_WaitsForMissingDevices(t *testing.T) {
	m := newManager(t, stateFile(t))
	plugin := &fake{}
	require.NoError(t, m.Update(gpu, plugin, healthy("a", "b")))
	one, two := pod("one", container("c", 2)), pod("two", container("c", 1))
	require.Equal(t, "a,b", inject(t, m, one))
	for _, list := range [][]devices.Device{nil, healthy("a")} {
		require.NoError(t, m.Update(gpu, plugin, list))
		for _, p := range []*corev1.Pod{one, two} {
			_, err := m.Inject(t.Context(), p, &p.Spec.Containers[0], false)
			require.ErrorIs(t, err, devices.ErrNotEnough)
		}
	}
	require.NoError(t, m.Update(gpu, plugin, healthy("a", "b")))
	require.Equal(t, "a,b", inject(t, m, one))
	require.Len(t, plugin.allocated, 1)
}

// A container that is started again gets a healthy device, if one is free.
func TestInject_ReplacesUnhealthyDevices(t *testing.T) {
	file := stateFile(t)
	m := newManager(t, file)
	plugin := &fake{}
	require.NoError(t, m.Update(gpu, plugin, healthy("a", "b")))
	one := pod("one", container("c", 1))
	require.Equal(t, "a", inject(t, m, one))
	require.NoError(t, m.Update(gpu, plugin, []devices.Device{{ID: "a"}, {ID: "b", Healthy: true}}))
	injection, err := m.Inject(t.Context(), one, &one.Spec.Containers[0], true)
	require.NoError(t, err)
	require.Equal(t, "a", injection.Env["GPUS"], "it runs")
	require.Equal(t, "b", inject(t, m, one))
	require.NoError(t, m.Update(gpu, plugin, []devices.Device{{ID: "a"}, {ID: "b"}}))
	require.Equal(t, "b", inject(t, m, one), "there is no better one")
	require.NoError(t, m.Update(gpu, plugin, healthy("a", "b")))
	require.Equal(t, "a", inject(t, m, pod("two", container("c", 1))), "it was freed")
	m.Disconnect(gpu, plugin)
	require.Equal(t, "b", inject(t, m, one), "what is healthy is not known")
	require.Equal(t, "b", inject(t, newManager(t, file), one), "it was stored")
}

// Devices that a plugin did not replace are not in the file any more.
func TestInject_ForgetsDevicesOfAFailedReplacement(t *testing.T) {
	file := stateFile(t)
	m := newManager(t, file)
	require.NoError(t, m.Update(gpu, &fake{}, healthy("a")))
	one := pod("one", container("c", 1))
	require.Equal(t, "a", inject(t, m, one))
	require.NoError(t, m.Update(gpu, &fake{err: errors.New("device is on fire")}, healthy("b")))
	_, err := m.Inject(t.Context(), one, &one.Spec.Containers[0], false)
	require.ErrorContains(t, err, "allocate b: device is on fire")
	require.NoError(t, m.Release(t.Context(), one.UID))
	uids, err := newManager(t, file).PodUIDs()
	require.NoError(t, err)
	require.Empty(t, uids)
}

// An app container takes over what replaces the devices of init containers.
func TestInject_ReusesReplacedDevices(t *testing.T) {
	m := newManager(t, stateFile(t))
	p := pod("p", container("app", 1), container("second", 1))
	p.Spec.InitContainers = []corev1.Container{container("init", 2)}
	injectAll := func() map[string]string {
		got := map[string]string{}
		for _, c := range slices.Concat(p.Spec.InitContainers, p.Spec.Containers) {
			injection, err := m.Inject(t.Context(), p, &c, false)
			require.NoError(t, err, c.Name)
			got[c.Name] = injection.Env["GPUS"]
		}
		return got
	}
	require.NoError(t, m.Update(gpu, &fake{}, healthy("a", "b")))
	require.Equal(t, map[string]string{"init": "a,b", "app": "a", "second": "b"}, injectAll())
	require.NoError(t, m.Update(gpu, &fake{}, healthy("b", "c")))
	require.Equal(t, map[string]string{"init": "b,c", "app": "c", "second": "b"}, injectAll())
	require.NoError(t, m.Update(gpu, &fake{}, healthy("x", "y")))
	require.Equal(t, map[string]string{"init": "x,y", "app": "x", "second": "y"}, injectAll())
}

// A pod whose devices are missing after a boot is admitted for others, and they are near to the
// nodes that were agreed on.
func TestManager_ReplacesNearDevices(t *testing.T) {
	file := stateFile(t)
	m := newManager(t, file, withNodes)
	require.NoError(t, m.Update(gpu, &fake{}, near("a")))
	p := pod("p", container("c", 1))
	require.Equal(t, "a0", inject(t, m, p))

	m = newManager(t, file, withNodes)
	require.NoError(t, m.Update(gpu, &fake{}, near("b")))
	require.Equal(t, [][]topology.Hint{{hint(true, 0), hint(true, 1), hint(false, 0, 1)}}, m.Hints(p, &p.Spec.Containers[0]))
	require.NoError(t, m.Reserve(p, &p.Spec.Containers[0], topology.NewSet(1)))
	injection, err := m.Inject(t.Context(), p, &p.Spec.Containers[0], true)
	require.NoError(t, err)
	require.Equal(t, "a0", injection.Env["GPUS"], "it may run with what it has")
	require.Equal(t, "b1", inject(t, m, p))
}

// takenOver is a pod with an init container and an app container that took over its two devices.
func takenOver() *corev1.Pod {
	p := pod("p", container("app", 2))
	p.Spec.InitContainers = []corev1.Container{container("init", 2)}
	return p
}

// injectInit allocates for the init container of a pod.
func injectInit(t *testing.T, m *devices.Manager, p *corev1.Pod) {
	t.Helper()
	_, err := m.Inject(t.Context(), p, &p.Spec.InitContainers[0], false)
	require.NoError(t, err)
}

// A device that a container took over counts once among those that it can get: it does not start
// with fewer than it requests.
func TestInject_CountsDevicesTakenOverOnce(t *testing.T) {
	m := newManager(t, stateFile(t))
	plugin := &fake{}
	require.NoError(t, m.Update(gpu, plugin, healthy("a", "b")))
	p := takenOver()
	injectInit(t, m, p)
	require.Equal(t, "a,b", inject(t, m, p))
	require.NoError(t, m.Update(gpu, plugin, []devices.Device{{ID: "a", Healthy: true}, {ID: "b"}}))
	require.Equal(t, "a,b", inject(t, m, p), "there are no better ones")
	require.NoError(t, m.Update(gpu, plugin, healthy("a")))
	_, err := m.Inject(t.Context(), p, &p.Spec.Containers[0], false)
	require.ErrorIs(t, err, devices.ErrNotEnough)
	require.ErrorContains(t, err, "2 requested, 1 free of 1")
	require.NoError(t, m.Update(gpu, plugin, healthy("a", "c")))
	require.Equal(t, "a,c", inject(t, m, p))
}

// A plugin with a preference is asked about each device once.
func TestInject_OffersDevicesTakenOverOnce(t *testing.T) {
	m := newManager(t, stateFile(t))
	var asked [][]string
	c := &chooser{answer: func(available []string, n int) ([]string, error) {
		asked = append(asked, available)
		return available[:n], nil
	}}
	require.NoError(t, m.Update(gpu, c, healthy("a", "b")))
	p := takenOver()
	injectInit(t, m, p)
	require.Equal(t, "a,b", inject(t, m, p))
	require.Empty(t, asked, "there is no choice")
	require.NoError(t, m.Update(gpu, c, healthy("a", "c", "d")))
	require.Equal(t, "a,c", inject(t, m, p))
	require.Equal(t, [][]string{{"a", "c", "d"}}, asked)
}

// Hints count each device once, too.
func TestManager_HintsCountDevicesTakenOverOnce(t *testing.T) {
	at := func(id string, node int64) devices.Device {
		return devices.Device{ID: id, Healthy: true, NUMANodes: []int64{node}}
	}
	m := newManager(t, stateFile(t), withNodes)
	plugin := &fake{}
	require.NoError(t, m.Update(gpu, plugin, []devices.Device{at("a", 0), at("b", 0), at("c", 0)}))
	p := takenOver()
	injectInit(t, m, p)
	require.Equal(t, "a,b", inject(t, m, p))
	require.Equal(t, "c", inject(t, m, pod("other", container("c", 1))))
	require.NoError(t, m.Update(gpu, plugin, []devices.Device{at("a", 0), at("c", 0), at("d", 1)}))
	require.Equal(t, [][]topology.Hint{{hint(false, 0, 1)}}, m.Hints(p, &p.Spec.Containers[0]))
	require.Equal(t, "a,d", inject(t, m, p))
}

// A container that is created again gets as many devices as its pod requests by now.
func TestInject_FollowsTheNumber(t *testing.T) {
	m := newManager(t, stateFile(t))
	plugin := &fake{}
	require.NoError(t, m.Update(gpu, plugin, healthy("a", "b", "c")))
	require.Equal(t, "a,b", inject(t, m, pod("one", container("c", 2))))
	more := pod("one", container("c", 3))
	injection, err := m.Inject(t.Context(), more, &more.Spec.Containers[0], true)
	require.NoError(t, err)
	require.Equal(t, "a,b", injection.Env["GPUS"], "it runs")
	require.Equal(t, "a,b,c", inject(t, m, more))
	require.Equal(t, "a", inject(t, m, pod("one", container("c", 1))))
	require.Equal(t, "b,c", inject(t, m, pod("two", container("c", 2))), "they were freed")
	_, err = m.Inject(t.Context(), more, &more.Spec.Containers[0], false)
	require.ErrorIs(t, err, devices.ErrNotEnough)
	require.Equal(t, "a", inject(t, m, pod("one", container("c", 1))))
	require.Len(t, plugin.allocated, 4)
}
