package podresources_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	api "k8s.io/kubelet/pkg/apis/podresources/v1"
	apialpha "k8s.io/kubelet/pkg/apis/podresources/v1alpha1"

	"github.com/sublet-dev/agent/devices"
	"github.com/sublet-dev/agent/devices/podresources"
	"github.com/sublet-dev/agent/internal/leaktest"
	"github.com/sublet-dev/agent/topology"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// fakeDevices are the devices of a node and what its pods have of them.
type fakeDevices struct {
	devices     map[corev1.ResourceName][]devices.Device
	allocations map[types.UID][]devices.Allocation
}

func (f fakeDevices) Allocations(uid types.UID) []devices.Allocation    { return f.allocations[uid] }
func (f fakeDevices) Devices() map[corev1.ResourceName][]devices.Device { return f.devices }

func pod(name string, phase corev1.PodPhase, containers ...string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "lab", Name: name, UID: types.UID(name)}, Status: corev1.PodStatus{Phase: phase}}
	for _, c := range containers {
		p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: c})
	}
	return p
}

// serve runs a Server and returns a client of it.
func serve(t *testing.T, cfg podresources.Config) api.PodResourcesListerClient {
	t.Helper()
	return api.NewPodResourcesListerClient(connect(t, cfg))
}

// connect runs a Server and connects to it.
func connect(t *testing.T, cfg podresources.Config) *grpc.ClientConn {
	t.Helper()
	dir, err := os.MkdirTemp("", "pr") //nolint:usetesting // the name of the test would make it too long
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, os.RemoveAll(dir)) })
	cfg.Path = filepath.Join(dir, "pod-resources", "kubelet.sock")
	s, err := podresources.New(cfg)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	t.Cleanup(sync.OnceFunc(func() {
		cancel()
		assert.NoError(t, <-done)
		assert.NoFileExists(t, cfg.Path)
	}))
	conn, err := grpc.NewClient("unix://"+cfg.Path, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultCallOptions(grpc.WaitForReady(true)))
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, conn.Close()) })
	return conn
}

// Monitors that speak v1alpha1 get the devices of regular containers.
func TestServer_ServesV1alpha1(t *testing.T) {
	running := pod("trainer", corev1.PodRunning, "main", "logger")
	running.Spec.InitContainers = []corev1.Container{{Name: "warm-up"}}
	requests := make(chan string, 10)
	conn := connect(t, podresources.Config{
		Hooks: podresources.Hooks{Requested: func(version, method string, err error) {
			requests <- version + " " + method + " " + status.Code(err).String()
		}},
		Pods: func() []*corev1.Pod { return []*corev1.Pod{running, pod("ended", corev1.PodSucceeded, "main")} },
		Devices: fakeDevices{allocations: map[types.UID][]devices.Allocation{"trainer": {
			{Container: "main", Resource: gpu, Devices: []devices.Device{{ID: "0", NUMANodes: []int64{1}}, {ID: "1"}}},
			{Container: "warm-up", Resource: gpu, Devices: []devices.Device{{ID: "0"}}},
		}}},
	})
	r, err := apialpha.NewPodResourcesListerClient(conn).List(t.Context(), &apialpha.ListPodResourcesRequest{})
	require.NoError(t, err)
	require.Len(t, r.GetPodResources(), 1)
	got := r.GetPodResources()[0]
	require.Equal(t, "lab/trainer", got.GetNamespace()+"/"+got.GetName())
	ids := map[string][]string{}
	for _, c := range got.GetContainers() {
		ids[c.GetName()] = nil
		for _, d := range c.GetDevices() {
			require.Equal(t, string(gpu), d.GetResourceName())
			ids[c.GetName()] = append(ids[c.GetName()], d.GetDeviceIds()...)
		}
	}
	require.Equal(t, map[string][]string{"main": {"0", "1"}, "logger": nil}, ids)
	require.Equal(t, "v1alpha1 List OK", <-requests)
	_, err = api.NewPodResourcesListerClient(conn).Get(t.Context(), &api.GetPodResourcesRequest{PodName: "none", PodNamespace: "lab"})
	require.Error(t, err)
	require.Equal(t, "v1 Get NotFound", <-requests)
}

const gpu corev1.ResourceName = "vendor.example/gpu"

func TestServer_ReportsDevicesOfContainers(t *testing.T) {
	always := corev1.ContainerRestartPolicyAlways
	trainer := pod("trainer", corev1.PodRunning, "main", "logger")
	trainer.Spec.InitContainers = []corev1.Container{{Name: "warm-up"}, {Name: "monitor", RestartPolicy: &always}}
	c := serve(t, podresources.Config{
		Pods: func() []*corev1.Pod { return []*corev1.Pod{trainer, pod("ended", corev1.PodSucceeded, "main")} },
		Devices: fakeDevices{
			devices: map[corev1.ResourceName][]devices.Device{
				gpu: {{ID: "0", Healthy: true, NUMANodes: []int64{1}}, {ID: "1"}}, "a.example/nic": {{ID: "n", Healthy: true}},
			},
			allocations: map[types.UID][]devices.Allocation{"trainer": {
				{Container: "main", Resource: gpu, Devices: []devices.Device{{ID: "0", NUMANodes: []int64{1}}, {ID: "1"}}},
				{Container: "monitor", Resource: "a.example/nic", Devices: []devices.Device{{ID: "n"}}},
				{Container: "warm-up", Resource: gpu, Devices: []devices.Device{{ID: "0"}}},
			}},
		},
	})
	// text is a resource of a container in a line, which protobuf's own form is not.
	text := func(list []*api.ContainerDevices) string {
		var out []string
		for _, d := range list {
			entry := d.GetResourceName() + "=" + strings.Join(d.GetDeviceIds(), "+")
			for _, n := range d.GetTopology().GetNodes() {
				entry += "@" + string(rune('0'+n.GetID()))
			}
			out = append(out, entry)
		}
		return strings.Join(out, " ")
	}
	of := func(p *api.PodResources) map[string]string {
		out := map[string]string{}
		for _, c := range p.GetContainers() {
			out[c.GetName()] = text(c.GetDevices())
		}
		return out
	}
	want := map[string]string{"monitor": "a.example/nic=n", "main": "vendor.example/gpu=0@1 vendor.example/gpu=1", "logger": ""}
	list, err := c.List(t.Context(), &api.ListPodResourcesRequest{})
	require.NoError(t, err)
	require.Len(t, list.GetPodResources(), 1, "one that ended has nothing")
	require.Equal(t, "lab/trainer", list.GetPodResources()[0].GetNamespace()+"/"+list.GetPodResources()[0].GetName())
	require.Equal(t, want, of(list.GetPodResources()[0]))
	one, err := c.Get(t.Context(), &api.GetPodResourcesRequest{PodNamespace: "lab", PodName: "trainer"})
	require.NoError(t, err)
	require.Equal(t, want, of(one.GetPodResources()))
	for _, missing := range []*api.GetPodResourcesRequest{{PodNamespace: "lab", PodName: "ended"}, {PodNamespace: "other", PodName: "trainer"}, {}} {
		_, err = c.Get(t.Context(), missing)
		require.Equal(t, codes.NotFound, status.Code(err))
	}
	all, err := c.GetAllocatableResources(t.Context(), &api.AllocatableResourcesRequest{})
	require.NoError(t, err)
	require.Equal(t, "a.example/nic=n vendor.example/gpu=0@1", text(all.GetDevices()), "the unhealthy one is left out")
}

// While one pod replaces another of its name, Get is about the new one, in whatever order they are known.
func TestServer_GetsThePodThatReplacesAnother(t *testing.T) {
	terminating, current, ended := pod("p", corev1.PodRunning, "old"), pod("p", corev1.PodPending, "new"), pod("p", corev1.PodFailed, "ended")
	terminating.DeletionTimestamp, ended.CreationTimestamp = &metav1.Time{Time: time.Unix(9, 0)}, metav1.Unix(9, 0)
	for _, pods := range [][]*corev1.Pod{{terminating, current, ended}, {ended, current, terminating}} {
		c := serve(t, podresources.Config{Pods: func() []*corev1.Pod { return pods }})
		got, err := c.Get(t.Context(), &api.GetPodResourcesRequest{PodNamespace: "lab", PodName: "p"})
		require.NoError(t, err)
		require.Equal(t, "new", got.GetPodResources().GetContainers()[0].GetName())
	}
}

// A client that asks in a loop does not keep the agent busy.
func TestServer_LimitsRequests(t *testing.T) {
	c := serve(t, podresources.Config{Pods: func() []*corev1.Pod { return nil }, Devices: fakeDevices{}})
	require.Eventually(t, func() bool {
		_, err := c.List(t.Context(), &api.ListPodResourcesRequest{})
		return status.Code(err) == codes.ResourceExhausted
	}, time.Minute, time.Nanosecond)
}

func TestNew_ReportsAllErrors(t *testing.T) {
	_, err := podresources.New(podresources.Config{Path: "relative"})
	for _, want := range []string{"Config.Path", "Config.Pods"} {
		require.ErrorContains(t, err, want)
	}
	_, err = podresources.New(podresources.Config{Path: "/" + strings.Repeat("x", 107), Pods: func() []*corev1.Pod { return nil }, Devices: fakeDevices{}})
	require.ErrorContains(t, err, "too long")
}

func TestRun_NeedsItsDirectory(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	s, err := podresources.New(podresources.Config{Path: filepath.Join(file, "s"), Pods: func() []*corev1.Pod { return nil }, Devices: fakeDevices{}})
	require.NoError(t, err)
	err = s.Run(t.Context())
	var failed *os.PathError
	require.True(t, errors.As(err, &failed), "%v", err)
}

// fakeCPUs are those that each container has for itself, out of four.
type fakeCPUs map[string]topology.Set

func (f fakeCPUs) CPUs(uid types.UID, container string) topology.Set {
	return f[string(uid)+"/"+container]
}
func (fakeCPUs) AllocatableCPUs() topology.Set { return topology.NewSet(1, 2, 3) }

func TestServer_ReportsCPUs(t *testing.T) {
	c := serve(t, podresources.Config{
		Pods:    func() []*corev1.Pod { return []*corev1.Pod{pod("p", corev1.PodRunning, "main", "other")} },
		Devices: fakeDevices{}, CPUs: fakeCPUs{"p/main": topology.NewSet(2, 3)},
	})
	list, err := c.List(t.Context(), &api.ListPodResourcesRequest{})
	require.NoError(t, err)
	require.Equal(t, []int64{2, 3}, list.GetPodResources()[0].GetContainers()[0].GetCpuIds())
	require.Empty(t, list.GetPodResources()[0].GetContainers()[1].GetCpuIds())
	all, err := c.GetAllocatableResources(t.Context(), &api.AllocatableResourcesRequest{})
	require.NoError(t, err)
	require.Equal(t, []int64{1, 2, 3}, all.GetCpuIds())
}

// fakeMemory is what each container has of the first two of three NUMA nodes.
type fakeMemory map[string]int64

func (f fakeMemory) Memory(uid types.UID, container string) (topology.Set, int64) {
	if bytes, ok := f[string(uid)+"/"+container]; ok {
		return topology.NewSet(0, 1), bytes
	}
	return topology.Set{}, 0
}
func (fakeMemory) AllocatableMemory() map[int]int64 { return map[int]int64{0: 8, 1: 0, 2: 4} }

func (f fakeMemory) HugePages(_ types.UID, container string) map[corev1.ResourceName]int64 {
	return map[string]map[corev1.ResourceName]int64{"main": {"hugepages-2Mi": 2, "hugepages-1Gi": 1}, "other": {"hugepages-2Mi": 9}}[container]
}

func (fakeMemory) AllocatableHugePages() map[int]map[corev1.ResourceName]int64 {
	return map[int]map[corev1.ResourceName]int64{0: {"hugepages-1Gi": 3, "hugepages-2Mi": 0}, 1: {"hugepages-2Mi": 6}}
}

// There is a block for memory and for each size of huge pages, without those of which there is nothing.
func TestServer_ReportsMemory(t *testing.T) {
	c := serve(t, podresources.Config{
		Pods:   func() []*corev1.Pod { return []*corev1.Pod{pod("p", corev1.PodRunning, "main", "other")} },
		Memory: fakeMemory{"p/main": 5}, HugePages: fakeMemory{},
	})
	text := func(list []*api.ContainerMemory) (out []string) {
		for _, m := range list {
			entry := fmt.Sprintf("%s %d", m.GetMemoryType(), m.GetSize())
			for _, n := range m.GetTopology().GetNodes() {
				entry += fmt.Sprintf(" @%d", n.GetID())
			}
			out = append(out, entry)
		}
		return out
	}
	list, err := c.List(t.Context(), &api.ListPodResourcesRequest{})
	require.NoError(t, err)
	require.Equal(t, []string{"memory 5 @0 @1", "hugepages-1Gi 1 @0 @1", "hugepages-2Mi 2 @0 @1"}, text(list.GetPodResources()[0].GetContainers()[0].GetMemory()))
	require.Empty(t, list.GetPodResources()[0].GetContainers()[1].GetMemory())
	all, err := c.GetAllocatableResources(t.Context(), &api.AllocatableResourcesRequest{})
	require.NoError(t, err)
	require.Equal(t, []string{"memory 8 @0", "hugepages-1Gi 3 @0", "hugepages-2Mi 6 @1", "memory 4 @2"}, text(all.GetMemory()))
	_, err = podresources.New(podresources.Config{Path: "/s", Pods: func() []*corev1.Pod { return nil }, HugePages: fakeMemory{}})
	require.ErrorContains(t, err, "Config.HugePages: needs Memory")
}

// fakeClaims are those of each container, by name.
type fakeClaims map[string]string

func (f fakeClaims) DynamicResources(p *corev1.Pod, c *corev1.Container) []*api.DynamicResource {
	name, ok := f[p.Name+"/"+c.Name]
	if !ok {
		return nil
	}
	return []*api.DynamicResource{{ClaimName: name, ClaimNamespace: p.Namespace, ClaimResources: []*api.ClaimResource{{
		DriverName: "gpu.vendor.example", PoolName: "node", DeviceName: "gpu0", CdiDevices: []*api.CDIDevice{{Name: "vendor.example/gpu=0"}},
	}}}}
}

// Neither ResourceClaims nor a node without any device need device plugins.
func TestServer_ReportsResourceClaims(t *testing.T) {
	always := corev1.ContainerRestartPolicyAlways
	p := pod("p", corev1.PodRunning, "main", "other")
	p.Spec.InitContainers = []corev1.Container{{Name: "monitor", RestartPolicy: &always}}
	c := serve(t, podresources.Config{
		Pods: func() []*corev1.Pod { return []*corev1.Pod{p} }, Claims: fakeClaims{"p/main": "a", "p/monitor": "b"},
	})
	all, err := c.GetAllocatableResources(t.Context(), &api.AllocatableResourcesRequest{})
	require.NoError(t, err)
	require.Empty(t, all.GetDevices())
	list, err := c.List(t.Context(), &api.ListPodResourcesRequest{})
	require.NoError(t, err)
	got := map[string]string{}
	for _, c := range list.GetPodResources()[0].GetContainers() {
		for _, d := range c.GetDynamicResources() {
			r := d.GetClaimResources()[0]
			got[c.GetName()] += strings.Join([]string{d.GetClaimNamespace(), d.GetClaimName(), r.GetDriverName(), r.GetPoolName(), r.GetDeviceName(), r.GetCdiDevices()[0].GetName()}, " ")
		}
	}
	require.Equal(t, map[string]string{
		"monitor": "lab b gpu.vendor.example node gpu0 vendor.example/gpu=0",
		"main":    "lab a gpu.vendor.example node gpu0 vendor.example/gpu=0",
	}, got)
}
