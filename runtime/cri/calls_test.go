//go:build linux

package cri

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/runtime"
)

func (f *fake) ListContainerStats(context.Context, *v1.ListContainerStatsRequest) (*v1.ListContainerStatsResponse, error) {
	return &v1.ListContainerStatsResponse{Stats: f.stats()}, nil
}

func (f *fake) StreamContainerStats(_ *v1.StreamContainerStatsRequest, s grpc.ServerStreamingServer[v1.StreamContainerStatsResponse]) error {
	if !f.streams {
		return status.Error(codes.Unimplemented, "no streams")
	}
	return s.Send(&v1.StreamContainerStatsResponse{ContainerStats: f.stats()})
}

func (f *fake) stats() []*v1.ContainerStats {
	n := func(v uint64) *v1.UInt64Value { return &v1.UInt64Value{Value: v} }
	whose := func(id string) *v1.ContainerAttributes {
		return &v1.ContainerAttributes{Id: id, Metadata: &v1.ContainerMetadata{Name: "main"}, Labels: map[string]string{runtime.LabelOwner: DefaultOwner, runtime.LabelPodUID: "uid-1"}}
	}
	return []*v1.ContainerStats{
		{
			Attributes: whose("runs"),
			Cpu:        &v1.CpuUsage{Timestamp: 10, UsageCoreNanoSeconds: n(5), UsageNanoCores: n(6)},
			Memory:     &v1.MemoryUsage{Timestamp: 11, WorkingSetBytes: n(100), AvailableBytes: n(50), UsageBytes: n(120), RssBytes: n(90), PageFaults: n(3), MajorPageFaults: n(1)},
			WritableLayer: &v1.FilesystemUsage{
				Timestamp: 12, UsedBytes: n(7), InodesUsed: n(2),
			},
		},
		{Attributes: whose("ended"), WritableLayer: &v1.FilesystemUsage{Timestamp: 12, UsedBytes: n(9)}},
		{Attributes: &v1.ContainerAttributes{Id: "foreign"}},
	}
}

func (f *fake) RuntimeConfig(context.Context, *v1.RuntimeConfigRequest) (*v1.RuntimeConfigResponse, error) {
	if f.noConfig {
		return nil, status.Error(codes.Unimplemented, "unknown method RuntimeConfig")
	}
	if f.streams {
		return &v1.RuntimeConfigResponse{}, nil
	}
	return &v1.RuntimeConfigResponse{Linux: &v1.LinuxRuntimeConfiguration{CgroupDriver: v1.CgroupDriver_CGROUPFS}}, nil
}

func (f *fake) ReopenContainerLog(_ context.Context, r *v1.ReopenContainerLogRequest) (*v1.ReopenContainerLogResponse, error) {
	if r.ContainerId != "ct-1" {
		return nil, status.Error(codes.NotFound, "no such container")
	}
	return &v1.ReopenContainerLogResponse{}, nil
}

func TestContainerStats(t *testing.T) {
	for _, streams := range []bool{false, true} {
		f := newFake()
		f.streams = streams
		got, err := f.client(t, Config{}).ContainerStats(t.Context())
		require.NoError(t, err)
		assert.Equal(t, []runtime.ContainerUsage{
			{
				PodUID: "uid-1", ID: "runs", Name: "main", Running: true,
				Memory: runtime.MemoryUsage{At: time.Unix(0, 11), Capacity: 150, Usage: 120, WorkingSet: 100, RSS: 90, PageFaults: 3, MajorFaults: 1},
				CPU:    runtime.CPUUsage{At: time.Unix(0, 10), UsageCoreNanoSeconds: 5, UsageNanoCores: 6, HasRate: true},
				Rootfs: runtime.DiskUsage{At: time.Unix(0, 12), Bytes: 7, Inodes: 2},
			},
			{PodUID: "uid-1", ID: "ended", Name: "main", Rootfs: runtime.DiskUsage{At: time.Unix(0, 12), Bytes: 9}},
		}, got)
	}
}

// The pod CIDRs of both families are one text in the CRI. A runtime may not know the call, and an observer does not make it.
func TestClient_UpdatePodCIDRs(t *testing.T) {
	f := newFake()
	var got []string
	f.setBefore(func(_ context.Context, _ string, request any) error {
		if r, ok := request.(*v1.UpdateRuntimeConfigRequest); ok {
			got = append(got, r.GetRuntimeConfig().GetNetworkConfig().GetPodCidr())
		}
		return nil
	})
	cidrs := []string{"10.1.0.0/24", "fd00:1::/64"}
	require.ErrorIs(t, f.client(t, Config{}).UpdatePodCIDRs(t.Context(), cidrs), runtime.ErrUnsupported)
	require.ErrorIs(t, f.client(t, Config{Observer: true}).UpdatePodCIDRs(t.Context(), cidrs), runtime.ErrNotOwner)
	assert.Equal(t, []string{"10.1.0.0/24,fd00:1::/64"}, got)
}

func TestClient_CgroupDriver(t *testing.T) {
	const runc = `"runtimeType":"io.containerd.runc.v2"`
	for name, tc := range map[string]struct {
		noConfig, empty bool
		info            string
		want            string // "": the runtime does not tell
	}{
		"by RuntimeConfig":                     {info: `{"containerd":{"runtimes":{"runc":{` + runc + `,"options":{"SystemdCgroup":true}}}}}`, want: "cgroupfs"},
		"RuntimeConfig tells nothing":          {empty: true},
		"no RuntimeConfig and nothing else":    {noConfig: true},
		"its configuration is no JSON":         {noConfig: true, info: "[crio.runtime]\ncgroup_manager = 'systemd'\n"},
		"its configuration is of another form": {noConfig: true, info: `{"containerd":{"runtimes":["runc"]}}`},
		"its configuration, systemd":           {noConfig: true, info: `{"containerd":{"defaultRuntimeName":"runc","runtimes":{"runc":{` + runc + `,"options":{"BinaryName":"","SystemdCgroup":true}}}}}`, want: "systemd"},
		"its configuration, cgroupfs":          {noConfig: true, info: `{"containerd":{"defaultRuntimeName":"runc","runtimes":{"runc":{` + runc + `,"options":{"SystemdCgroup":false}}}}}`, want: "cgroupfs"},
		"its configuration says nothing of it": {noConfig: true, info: `{"containerd":{"defaultRuntimeName":"runc","runtimes":{"runc":{` + runc + `}}}}`, want: "cgroupfs"},
		"the default handler counts":           {noConfig: true, info: `{"containerd":{"defaultRuntimeName":"z","runtimes":{"a":{` + runc + `},"z":{` + runc + `,"options":{"SystemdCgroup":true}}}}}`, want: "systemd"},
		"a default handler without cgroups":    {noConfig: true, info: `{"containerd":{"defaultRuntimeName":"kata","runtimes":{"kata":{"runtimeType":"io.containerd.kata.v2","options":{}},"runc":{` + runc + `,"options":{"SystemdCgroup":true}}}}}`, want: "systemd"},
		"no handler that has any":              {noConfig: true, info: `{"containerd":{"defaultRuntimeName":"kata","runtimes":{"kata":{"runtimeType":"io.containerd.kata.v2","options":null}}}}`},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake()
			f.noConfig, f.streams, f.configInfo = tc.noConfig, tc.empty, tc.info
			driver, err := f.client(t, Config{}).CgroupDriver(t.Context())
			if tc.want == "" {
				require.ErrorIs(t, err, runtime.ErrUnsupported)
				return
			}
			require.NoError(t, err)
			assert.Equal(t, tc.want, driver)
		})
	}
}

// A real runtime tells its driver in one way or the other.
func TestClient_CgroupDriverOfContainerd(t *testing.T) {
	c, _ := lab(t)
	driver, err := c.CgroupDriver(t.Context())
	require.NoError(t, err)
	assert.Equal(t, "cgroupfs", driver)
}

// An update of the cpuset changes nothing else of the container.
func TestUpdateCpuset(t *testing.T) {
	f := newFake()
	c := f.client(t, Config{})
	require.NoError(t, c.UpdateCpuset(t.Context(), "ct-1", runtime.Cpuset{CPUs: "2-3", MemoryNodes: "1"}))
	require.Len(t, f.updates, 1)
	require.Equal(t, "ct-1", f.updates[0].GetContainerId())
	linux := f.updates[0].GetLinux()
	require.Equal(t, "2-3", linux.GetCpusetCpus())
	require.Equal(t, "1", linux.GetCpusetMems())
	require.Zero(t, linux.GetCpuShares()+linux.GetCpuQuota()+linux.GetCpuPeriod()+linux.GetMemoryLimitInBytes(), "no change")
}

func TestReopenLog(t *testing.T) {
	c := newFake().client(t, Config{})
	require.NoError(t, c.ReopenLog(t.Context(), "ct-1"))
	assert.ErrorIs(t, c.ReopenLog(t.Context(), "ct-2"), runtime.ErrNotFound)
}

// RT-11: an image volume's image is fetched by its own policy, beside the
// container's, and mounted by its id.
func TestImageVolumes(t *testing.T) {
	f := newFake()
	f.addImage(busybox)
	pod := onePod("main")
	pod.Spec.Volumes = []corev1.Volume{{Name: "model", VolumeSource: corev1.VolumeSource{Image: &corev1.ImageVolumeSource{Reference: "lab/model:2", PullPolicy: corev1.PullAlways}}}}
	pod.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "model", MountPath: "/model"}, {Name: "model", MountPath: "/again"}}
	m := runtime.RunOptions{Volumes: map[string]runtime.Volume{"model": {Image: "lab/model:2"}}}
	require.Empty(t, f.client(t, Config{}).Apply(t.Context(), pod, startAll(pod), m).Failures)
	require.Len(t, f.pulls, 1)
	for _, cfg := range f.configs {
		require.Len(t, cfg.GetMounts(), 2)
		assert.Equal(t, "sha256:lab/model:2", cfg.GetMounts()[0].GetImage().GetImage())
	}

	// One that cannot be had is named with its reason.
	pod.Spec.Volumes[0].Image.PullPolicy = corev1.PullNever
	f = newFake()
	f.addImage(busybox)
	applied := f.client(t, Config{}).Apply(t.Context(), pod, startAll(pod), m)
	assert.ErrorContains(t, applied.Failures["main"].Err, `volume "model"`)
	assert.Equal(t, "ErrImageNeverPull", applied.Failures["main"].Reason)
}

// RT-7: an ephemeral container sees the processes of the container that runs.
func TestEphemeralTarget(t *testing.T) {
	f := newFake()
	c := f.client(t, Config{})
	pod := onePod("main")
	observed := running(t, f, c, pod)
	pod.Spec.EphemeralContainers = []corev1.EphemeralContainer{{
		TargetContainerName:      "main",
		EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "debug", Image: busybox},
	}}
	// Another process carries on: it knows nothing of the sandbox yet.
	other := f.client(t, Config{})
	plan := []runtime.Action{{Type: runtime.StartContainer, Container: "debug", ContainerType: runtime.Ephemeral}}
	require.Empty(t, other.Apply(t.Context(), pod, plan, runtime.RunOptions{}).Failures)
	second, err := other.Pod(t.Context(), pod.UID)
	require.NoError(t, err)
	debug := f.configs[second.LatestContainer("debug").ID]
	assert.Equal(t, observed.Containers[0].ID, debug.GetLinux().GetSecurityContext().GetNamespaceOptions().GetTargetId())
	assert.Equal(t, runtime.Ephemeral, second.LatestContainer("debug").Type)

	f.mu.Lock()
	f.exit(observed.Containers[0].ID, 0)
	f.mu.Unlock()
	plan[0].Attempt = 1
	applied := other.Apply(t.Context(), pod, plan, runtime.RunOptions{})
	assert.ErrorIs(t, applied.Failures["debug"].Err, runtime.ErrNotReady)
}

// Without a ready sandbox nothing is started.
func TestNoStartWithoutASandbox(t *testing.T) {
	f := newFake()
	applied := f.client(t, Config{}).Apply(t.Context(), onePod("main"), startAll(onePod("main"))[1:], runtime.RunOptions{})
	require.ErrorIs(t, applied.Failures[""].Err, runtime.ErrNotReady)
	assert.Zero(t, f.count("CreateContainer"))
}
