package devices_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/devices"
	"github.com/sublet-dev/agent/internal/leaktest"
	"github.com/sublet-dev/agent/runtime"
	"github.com/sublet-dev/agent/topology"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

const gpu corev1.ResourceName = "vendor.example/gpu"

// fake is a plugin that names the devices it hands out in a variable.
type fake struct {
	allocated [][]string
	err       error
	block     bool
}

func (f *fake) Allocate(ctx context.Context, ids []string) (runtime.Injection, error) {
	if f.block {
		<-ctx.Done()
		return runtime.Injection{}, ctx.Err()
	}
	if f.err != nil {
		return runtime.Injection{}, f.err
	}
	f.allocated = append(f.allocated, ids)
	return runtime.Injection{Env: map[string]string{"GPUS": strings.Join(ids, ",")}, CDIDevices: []string{"vendor.example/gpu=" + ids[0]}}, nil
}

// chooser is a plugin with a preference.
type chooser struct {
	fake

	answer  func(available []string, n int) ([]string, error)
	include []string // of the last call
}

func (c *chooser) Choose(_ context.Context, available, include []string, n int) ([]string, error) {
	c.include = include
	return c.answer(available, n)
}

// starter counts the calls of PreStart.
type starter struct {
	fake

	started [][]string
	err     error
}

func (s *starter) PreStart(_ context.Context, ids []string) error {
	s.started = append(s.started, ids)
	return s.err
}

func healthy(ids ...string) []devices.Device {
	list := make([]devices.Device, len(ids))
	for i, id := range ids {
		list[i] = devices.Device{ID: id, Healthy: true}
	}
	return list
}

func container(name string, n int64) corev1.Container {
	return corev1.Container{Name: name, Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{gpu: *resource.NewQuantity(n, resource.DecimalSI)}}}
}

func pod(name string, containers ...corev1.Container) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("uid-" + name)}, Spec: corev1.PodSpec{Containers: containers}}
}

func newManager(t *testing.T, file string, change ...func(*devices.Config)) *devices.Manager {
	t.Helper()
	cfg := devices.Config{StateFile: file}
	for _, f := range change {
		f(&cfg)
	}
	m, err := devices.New(cfg)
	require.NoError(t, err)
	return m
}

func stateFile(t *testing.T) string { t.Helper(); return filepath.Join(t.TempDir(), "devices.json") }

// inject allocates for all containers of a pod that do not run, and returns the devices of the last one.
func inject(t *testing.T, m *devices.Manager, p *corev1.Pod) string {
	t.Helper()
	var got string
	for i := range p.Spec.Containers {
		injection, err := m.Inject(t.Context(), p, &p.Spec.Containers[i], false)
		require.NoError(t, err)
		got = injection.Env["GPUS"]
	}
	return got
}

func TestNew_ReportsAllErrors(t *testing.T) {
	_, err := devices.New(devices.Config{StateFile: "x", PluginGracePeriod: -1, AllocateTimeout: -1, PreStartTimeout: -1})
	for _, want := range []string{"Config.StateFile", "Config.PluginGracePeriod", "Config.AllocateTimeout", "Config.PreStartTimeout"} {
		require.ErrorContains(t, err, want)
	}
}

func TestUpdate_RejectsInvalidDevices(t *testing.T) {
	m := newManager(t, stateFile(t))
	many := make([]devices.Device, 10_001)
	for _, tc := range []struct {
		name     string
		resource corev1.ResourceName
		plugin   devices.Plugin
		list     []devices.Device
		want     string
	}{
		{"no plugin", gpu, nil, nil, "plugin required"},
		{"native resource", corev1.ResourceCPU, &fake{}, nil, "extended resource"},
		{"domain of Kubernetes", "node.kubernetes.io/gpu", &fake{}, nil, "extended resource"},
		{"quota", "requests.vendor.example/gpu", &fake{}, nil, "extended resource"},
		{"not a name", "vendor.example/a b", &fake{}, nil, "extended resource"},
		{"no id", gpu, &fake{}, healthy("a", ""), "no id"},
		{"same id", gpu, &fake{}, healthy("a", "b", "a"), `"a"`},
		{"too many", gpu, &fake{}, many, "10001 devices"},
	} {
		t.Run(tc.name, func(t *testing.T) { require.ErrorContains(t, m.Update(tc.resource, tc.plugin, tc.list), tc.want) })
	}
	require.Empty(t, m.Capacity(), "what was rejected is not stored")
}

func TestInject_AllocatesEachDeviceOnce(t *testing.T) {
	m := newManager(t, stateFile(t))
	p := &fake{}
	require.NoError(t, m.Update(gpu, p, healthy("c", "a", "b")))
	one := pod("one", container("c", 2))
	require.Equal(t, "a,b", inject(t, m, one))
	require.Equal(t, "a,b", inject(t, m, one), "the same at each sync")
	require.Len(t, p.allocated, 1, "the plugin is asked once")
	require.Equal(t, "c", inject(t, m, pod("two", container("c", 1))))

	three := pod("three", container("c", 1))
	_, err := m.Inject(t.Context(), three, &three.Spec.Containers[0], false)
	require.ErrorIs(t, err, devices.ErrNotEnough)
	require.ErrorContains(t, err, "container c: vendor.example/gpu: too few healthy devices are free: 1 requested, 0 free of 3")
	require.NoError(t, m.Release(t.Context(), one.UID))
	require.Equal(t, "a", inject(t, m, three))
}

func TestInject_IgnoresWhatNoPluginProvides(t *testing.T) {
	m := newManager(t, stateFile(t))
	require.NoError(t, m.Update(gpu, &fake{}, healthy("a")))
	c := container("c", 0)
	c.Resources.Limits["other.example/x"] = resource.MustParse("1")
	c.Resources.Limits[corev1.ResourceCPU] = resource.MustParse("1")
	injection, err := m.Inject(t.Context(), pod("p", c), &c, false)
	require.NoError(t, err)
	require.True(t, injection.IsZero())
}

func TestInject_MergesResources(t *testing.T) {
	m := newManager(t, stateFile(t))
	require.NoError(t, m.Update(gpu, &fake{}, healthy("a")))
	c := container("c", 1)
	c.Resources.Limits["vendor.example/nic"] = resource.MustParse("1")
	require.NoError(t, m.Update("vendor.example/nic", &fake{}, healthy("n")))
	_, err := m.Inject(t.Context(), pod("p", c), &c, false)
	require.ErrorContains(t, err, "two different injections of the variable GPUS", "both plugins set it")
}

// A resource that a container has from a claim is not allocated, also if its plugin is gone.
func TestInject_LeavesTheResourcesOfClaimsOut(t *testing.T) {
	m := newManager(t, stateFile(t), func(cfg *devices.Config) { cfg.NUMANodes = topology.NewSet(0, 1) })
	plugin := &fake{}
	require.NoError(t, m.Update(gpu, plugin, []devices.Device{{ID: "a", Healthy: true, NUMANodes: []int64{1}}}))
	p := pod("p", container("c", 1))
	p.Status.ExtendedResourceClaimStatus = &corev1.PodExtendedResourceClaimStatus{ResourceClaimName: "made", RequestMappings: []corev1.ContainerExtendedResourceRequest{
		{ContainerName: "c", ResourceName: string(gpu), RequestName: "r"},
	}}
	require.Empty(t, m.Hints(p, &p.Spec.Containers[0]))
	require.NoError(t, m.Reserve(p, &p.Spec.Containers[0], topology.NewSet(1)))
	require.Empty(t, inject(t, m, p))
	m.Disconnect(gpu, plugin)
	require.Empty(t, inject(t, m, p))
	require.Empty(t, m.Allocations(p.UID))
	require.Empty(t, plugin.allocated)
}

// A device that fails while a container has it stays with the container, and is not given
// to another one.
func TestInject_LeavesUnhealthyDevicesOut(t *testing.T) {
	var changed []types.UID
	m := newManager(t, stateFile(t))
	m.NotifyHealth(func(uid types.UID) { changed = append(changed, uid) })
	plugin := &fake{}
	require.NoError(t, m.Update(gpu, plugin, healthy("a", "b")))
	one := pod("one", container("c", 1))
	require.Equal(t, "a", inject(t, m, one))
	require.NoError(t, m.Update(gpu, plugin, []devices.Device{{ID: "a"}, {ID: "b"}}))
	require.Equal(t, []types.UID{one.UID}, changed)
	require.Equal(t, "a", inject(t, m, one))
	two := pod("two", container("c", 1))
	_, err := m.Inject(t.Context(), two, &two.Spec.Containers[0], false)
	require.ErrorIs(t, err, devices.ErrNotEnough)
	require.Equal(t, []corev1.ResourceStatus{{Name: gpu, Resources: []corev1.ResourceHealth{{ResourceID: "a", Health: corev1.ResourceHealthStatusUnhealthy}}}}, m.ResourceStatuses(one.UID, "c"))
	require.Empty(t, m.ResourceStatuses(one.UID, "other"))
	require.NoError(t, m.Update(gpu, plugin, healthy("a", "b")))
	require.Equal(t, []types.UID{one.UID, one.UID}, changed)
	require.Equal(t, "b", inject(t, m, two))
}

// An app container takes over the devices of init containers, as they have ended by then.
// Those of a sidecar stay its own.
func TestInject_ReusesDevicesOfInitContainers(t *testing.T) {
	m := newManager(t, stateFile(t))
	require.NoError(t, m.Update(gpu, &fake{}, healthy("a", "b", "c")))
	p := pod("p", container("app", 1), container("second", 1))
	sidecar := container("sidecar", 1)
	sidecar.RestartPolicy = new(corev1.ContainerRestartPolicyAlways)
	p.Spec.InitContainers = []corev1.Container{container("first", 2), sidecar}
	got := map[string]string{}
	for _, c := range slices.Concat(p.Spec.InitContainers, p.Spec.Containers) {
		injection, err := m.Inject(t.Context(), p, &c, false)
		require.NoError(t, err, c.Name)
		got[c.Name] = injection.Env["GPUS"]
	}
	require.Equal(t, map[string]string{"first": "a,b", "sidecar": "a", "app": "b", "second": "c"}, got)
}

func TestInject_AsksThePluginForAPreference(t *testing.T) {
	for _, tc := range []struct {
		name   string
		answer func(available []string, n int) ([]string, error)
		want   string
	}{
		{"last ones", func(a []string, n int) ([]string, error) { return a[len(a)-n:], nil }, "c,d"},
		{"one too few", func([]string, int) ([]string, error) { return []string{"c"}, nil }, "a,c"},
		{"too many", func(a []string, _ int) ([]string, error) { return a, nil }, "a,b"},
		{"unknown ones", func([]string, int) ([]string, error) { return []string{"x", "d", "d"}, nil }, "a,d"},
		{"error", func([]string, int) ([]string, error) { return []string{"d"}, errors.New("broken") }, "a,b"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			m := newManager(t, stateFile(t))
			require.NoError(t, m.Update(gpu, &chooser{answer: tc.answer}, healthy("a", "b", "c", "d")))
			require.Equal(t, tc.want, inject(t, m, pod("p", container("c", 2))))
		})
	}
}

func TestInject_FreesDevicesOfAFailedAllocation(t *testing.T) {
	var hooks []error
	m := newManager(t, stateFile(t), func(cfg *devices.Config) {
		cfg.Hooks.Allocated = func(r devices.Request) { hooks = append(hooks, r.Err) }
	})
	p := &fake{err: errors.New("device is on fire")}
	require.NoError(t, m.Update(gpu, p, healthy("a")))
	one := pod("one", container("c", 1))
	_, err := m.Inject(t.Context(), one, &one.Spec.Containers[0], false)
	require.ErrorContains(t, err, "container c: vendor.example/gpu: allocate a: device is on fire")
	uids, err := m.PodUIDs()
	require.NoError(t, err)
	require.Empty(t, uids)
	p.err = nil
	require.Equal(t, "a", inject(t, m, pod("two", container("c", 1))))
	require.Len(t, hooks, 2)
	require.Error(t, hooks[0])
	require.NoError(t, hooks[1])
}

// A plugin that hangs delays its pod for a minute, and no other.
func TestInject_BoundsHungPlugins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newManager(t, stateFile(t))
		require.NoError(t, m.Update(gpu, &fake{block: true}, healthy("a")))
		require.NoError(t, m.Update("vendor.example/nic", &fake{}, healthy("n")))
		hung := pod("hung", container("c", 1))
		done := make(chan error)
		start := time.Now()
		go func() {
			_, err := m.Inject(t.Context(), hung, &hung.Spec.Containers[0], false)
			done <- err
		}()
		synctest.Wait()
		other := pod("other", corev1.Container{Name: "c", Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{"vendor.example/nic": resource.MustParse("1")}}})
		require.Equal(t, "n", inject(t, m, other))
		require.Zero(t, time.Since(start))
		require.ErrorIs(t, <-done, context.DeadlineExceeded)
		require.Equal(t, time.Minute, time.Since(start))
	})
}

// Allocations survive a restart of the agent. Before the plugin is back, pods that have
// devices keep them and others wait.
func TestManager_SurvivesRestart(t *testing.T) {
	file := stateFile(t)
	m := newManager(t, file)
	require.NoError(t, m.Update(gpu, &starter{}, healthy("a", "b")))
	one := pod("one", container("c", 1))
	require.Equal(t, "a", inject(t, m, one))

	m = newManager(t, file)
	require.Equal(t, "a", inject(t, m, one), "without the plugin")
	injection, err := m.Inject(t.Context(), one, &one.Spec.Containers[0], true)
	require.NoError(t, err)
	require.Equal(t, []string{"vendor.example/gpu=a"}, injection.CDIDevices)
	require.ErrorIs(t, m.PreStart(t.Context(), one, "c"), devices.ErrNoPlugin)
	require.Equal(t, corev1.ResourceHealthStatusUnknown, m.ResourceStatuses(one.UID, "c")[0].Resources[0].Health)
	two := pod("two", container("c", 1))
	_, err = m.Inject(t.Context(), two, &two.Spec.Containers[0], false)
	require.ErrorIs(t, err, devices.ErrNoPlugin)
	s := &starter{}
	require.NoError(t, m.Update(gpu, s, healthy("a", "b")))
	require.Equal(t, "b", inject(t, m, two))
	require.NoError(t, m.PreStart(t.Context(), one, "c"))
	require.Equal(t, [][]string{{"a"}}, s.started)
	s.err = errors.New("reset failed")
	require.ErrorContains(t, m.PreStart(t.Context(), one, "c"), "devices of container c: vendor.example/gpu: prepare a: reset failed")
	require.NoError(t, m.PreStart(t.Context(), one, "other"))

	require.NoError(t, m.Release(t.Context(), one.UID))
	m = newManager(t, file)
	uids, err := m.PodUIDs()
	require.NoError(t, err)
	require.Equal(t, []types.UID{two.UID}, uids)
}

func TestManager_SurvivesDamagedState(t *testing.T) {
	for name, damage := range map[string]func(t *testing.T, file string){
		"truncated": func(t *testing.T, file string) {
			text, err := os.ReadFile(file)
			require.NoError(t, err)
			require.NoError(t, os.WriteFile(file, text[:len(text)/2], 0o600))
		},
		"another version": func(t *testing.T, file string) {
			require.NoError(t, os.WriteFile(file, []byte(`{"version":7}`), 0o600))
		},
		"empty": func(t *testing.T, file string) { require.NoError(t, os.WriteFile(file, nil, 0o600)) },
		"huge":  func(t *testing.T, file string) { require.NoError(t, os.Truncate(file, 1<<40)) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				file := stateFile(t)
				m := newManager(t, file)
				require.NoError(t, m.Update(gpu, &fake{}, healthy("a", "b")))
				running := pod("running", container("c", 1))
				require.Equal(t, "a", inject(t, m, running))
				damage(t, file)

				var lost error
				m = newManager(t, file, func(cfg *devices.Config) { cfg.Hooks.StateLost = func(err error) { lost = err } })
				other := pod("other", container("c", 1))
				_, err := m.Inject(t.Context(), other, &other.Spec.Containers[0], false)
				require.ErrorIs(t, err, devices.ErrNoPlugin, "plugins get time to come back")
				require.ErrorContains(t, lost, file)
				require.FileExists(t, file+".damaged")
				_, err = m.Inject(t.Context(), running, &running.Spec.Containers[0], true)
				require.ErrorIs(t, err, devices.ErrStateLost)
				require.NoError(t, m.Update(gpu, &fake{}, healthy("a", "b")))
				_, err = m.Inject(t.Context(), other, &other.Spec.Containers[0], false)
				require.ErrorIs(t, err, devices.ErrStateLost, "either device could be the one in use")
				require.ErrorContains(t, err, "default/running")
				require.NoError(t, m.Release(t.Context(), running.UID))
				_, err = m.Inject(t.Context(), other, &other.Spec.Containers[0], false)
				require.ErrorIs(t, err, devices.ErrStateLost)
				time.Sleep(time.Minute)
				require.Equal(t, "a", inject(t, m, other))
			})
		})
	}
}

// After the state was lost a pod does not wait indefinitely for a resource that no plugin
// provides.
func TestInject_StopsWaitingForUnknownResources(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		file := stateFile(t)
		require.NoError(t, os.WriteFile(file, []byte("{"), 0o600))
		m := newManager(t, file)
		p := pod("p", container("c", 1))
		_, err := m.Inject(t.Context(), p, &p.Spec.Containers[0], false)
		require.ErrorIs(t, err, devices.ErrNoPlugin)
		time.Sleep(5 * time.Minute)
		injection, err := m.Inject(t.Context(), p, &p.Spec.Containers[0], false)
		require.NoError(t, err)
		require.True(t, injection.IsZero())
	})
}

// A state that cannot be stored means that nothing is handed out.
func TestInject_FailsWithoutDisk(t *testing.T) {
	m := newManager(t, filepath.Join(t.TempDir(), "missing", "devices.json"))
	require.NoError(t, m.Update(gpu, &fake{}, healthy("a")))
	p := pod("p", container("c", 1))
	_, err := m.Inject(t.Context(), p, &p.Spec.Containers[0], false)
	require.ErrorIs(t, err, os.ErrNotExist)
	require.Empty(t, m.Allocations(p.UID))
}

func TestManager_CountsDevices(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newManager(t, stateFile(t))
		first, second := &fake{}, &chooser{}
		require.NoError(t, m.Update(gpu, first, []devices.Device{{ID: "a", Healthy: true, NUMANodes: []int64{1}}, {ID: "b"}}))
		count := func(capacity, allocatable int64) {
			t.Helper()
			c, a := m.Capacity()[gpu], m.Allocatable()[gpu]
			assert.Equal(t, []int64{capacity, allocatable}, []int64{c.Value(), a.Value()})
		}
		count(2, 1)
		require.Equal(t, []devices.Device{{ID: "a", Healthy: true, NUMANodes: []int64{1}}, {ID: "b"}}, m.Devices()[gpu])
		require.NoError(t, m.Update(gpu, second, healthy("a", "b", "c")))
		count(3, 3)
		m.Disconnect(gpu, first)
		count(3, 3) // it was replaced before
		m.Disconnect(gpu, second)
		count(3, 0)
		require.Empty(t, m.Devices())
		time.Sleep(5 * time.Minute)
		count(3, 0)
		time.Sleep(time.Nanosecond)
		require.NotContains(t, m.Allocatable(), gpu)
		require.Equal(t, corev1.ResourceList{gpu: *resource.NewQuantity(0, resource.DecimalSI)}, m.Capacity())
	})
}
