package translate

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/runtime"
)

// AG-4: a start that ended with the process that asked for it is none; any other
// failure to start is an end of the container.
func TestAddContainerStatus_InterruptedStartIsNoEnd(t *testing.T) {
	for name, c := range map[string]struct {
		message string
		reason  string
		want    runtime.ContainerState
	}{
		"the caller went away":            {"failed to start: context canceled: unknown", "StartError", runtime.Created},
		"no such command":                 {"exec: no such file or directory", "StartError", runtime.Exited},
		"it ran, and said so when it did": {"context canceled", "Error", runtime.Exited},
	} {
		t.Run(name, func(t *testing.T) {
			got := AddContainerStatus(runtime.Container{}, &v1.ContainerStatus{
				State: v1.ContainerState_CONTAINER_EXITED, ExitCode: 128, Reason: c.reason, Message: c.message,
			})
			assert.Equal(t, c.want, got.State)
		})
	}
}

// What a container is made with is read back from the runtime.
func TestObservedContainer_ReadsBackAnnotations(t *testing.T) {
	hook := &corev1.LifecycleHandler{Sleep: &corev1.SleepAction{Seconds: 3}}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "shop", UID: "uid-1", DeletionGracePeriodSeconds: new(int64(5))},
		Spec: corev1.PodSpec{TerminationGracePeriodSeconds: new(int64(30)), Containers: []corev1.Container{{
			Name: "main", Image: "app:1", Lifecycle: &corev1.Lifecycle{PreStop: hook}, Ports: []corev1.ContainerPort{{Name: "http", ContainerPort: 80}},
		}}},
	}
	spec := &pod.Spec.Containers[0]
	tr := &Translator{Pod: pod, Owner: "node-1"}
	for _, kind := range []runtime.ContainerType{runtime.Regular, runtime.Init, runtime.Sidecar, runtime.Ephemeral} {
		config, err := tr.Container(ContainerInput{
			Spec: spec, Attempt: 4, Action: runtime.Action{ContainerType: kind, BackOffStep: 2, RestartGeneration: 7},
		})
		require.NoError(t, err)
		got := ObservedContainer(&v1.Container{
			Id: "id", PodSandboxId: "sb", CreatedAt: 5, State: v1.ContainerState_CONTAINER_RUNNING, ImageId: "sha256:1", ImageRef: "reg/app@sha256:1",
			Metadata: &v1.ContainerMetadata{Name: "main", Attempt: 1}, Labels: config.GetLabels(), Annotations: config.GetAnnotations(),
			Image: &v1.ImageSpec{Image: "sha256:1", UserSpecifiedImage: "app"},
		}, "")
		assert.Equal(t, runtime.Container{
			ID: "id", SandboxID: "sb", Name: "main", Attempt: 4, State: runtime.Running, Created: time.Unix(0, 5),
			Image: "app", ImageID: "sha256:1", Labels: config.GetLabels(), Annotations: config.GetAnnotations(),
			Hash: runtime.HashContainer(spec), SpecImage: spec.Image, Type: kind, BackOffStep: 2, BackOffResources: runtime.HashResources(spec), RestartGeneration: 7, GracePeriod: 5 * time.Second, PreStop: hook,
		}, got)
		assert.Equal(t, spec.Ports, Ports(got.Annotations))
	}
}

// VERSIONING.md: an agent reads the annotations of earlier versions.
func TestObservedContainer_AnnotationsOfEarlierVersions(t *testing.T) {
	got := ObservedContainer(&v1.Container{Annotations: map[string]string{
		"sublet.dev/container.kind": "Sidecar", "sublet.dev/container.round": "7",
	}}, "")
	assert.Equal(t, runtime.Sidecar, got.Type)
	assert.Equal(t, uint32(7), got.RestartGeneration)
	got = ObservedContainer(&v1.Container{Annotations: map[string]string{
		"sublet.dev/container.kind": "Sidecar", "sublet.dev/container.round": "7",
		"sublet.dev/container.type": "Init", "sublet.dev/container.restart-generation": "8",
	}}, "")
	assert.Equal(t, runtime.Init, got.Type)
	assert.Equal(t, uint32(8), got.RestartGeneration)
}

// Annotations that another program wrote count for nothing, and harm nothing.
func TestObservedContainer_ForeignAnnotations(t *testing.T) {
	a := map[string]string{
		runtime.AnnotationContainerType: "odd", runtime.AnnotationBackOffStep: "x", runtime.AnnotationRestartGeneration: "-1",
		runtime.AnnotationRestartCount: "x", runtime.AnnotationPreStop: "{", runtime.AnnotationPorts: "{",
		runtime.AnnotationDeletionGracePeriod: "x", runtime.AnnotationGracePeriod: "30",
	}
	got := ObservedContainer(&v1.Container{
		State: v1.ContainerState_CONTAINER_CREATED, Metadata: &v1.ContainerMetadata{Attempt: 3}, ImageRef: "ref", Image: &v1.ImageSpec{Image: "app"},
		Annotations: a,
	}, "boot")
	assert.Equal(t, runtime.Container{State: runtime.Created, Attempt: 3, Image: "app", ImageID: "ref", GracePeriod: 30 * time.Second, Annotations: a}, got)
	assert.Empty(t, Ports(a))
	assert.Empty(t, Ports(map[string]string{runtime.AnnotationPorts: `[{"containerPort":1},{"containerPort":"x"}]`}))
	assert.Zero(t, GracePeriod(nil))
	assert.Equal(t, runtime.Unknown, ObservedContainer(&v1.Container{State: v1.ContainerState_CONTAINER_UNKNOWN}, "").State)
}

func TestObservedSandbox(t *testing.T) {
	labels, a := map[string]string{"l": "1"}, map[string]string{podspec.AnnotationSource: "file", runtime.AnnotationGracePeriod: "9"}
	want := runtime.Sandbox{
		ID: "sb", Attempt: 2, Created: time.Unix(0, 7), Handler: "kata", Labels: labels, Annotations: a, Source: "file",
		GracePeriod: 9 * time.Second, State: runtime.SandboxReady,
	}
	listed := &v1.PodSandbox{
		Id: "sb", Metadata: &v1.PodSandboxMetadata{Attempt: 2}, CreatedAt: 7, RuntimeHandler: "kata", Labels: labels, Annotations: a,
		State: v1.PodSandboxState_SANDBOX_READY,
	}
	assert.Equal(t, want, ObservedSandbox(listed))
	listed.State = v1.PodSandboxState_SANDBOX_NOTREADY
	assert.Equal(t, runtime.SandboxNotReady, ObservedSandbox(listed).State)

	network := &v1.PodSandboxNetworkStatus{Ip: "10.0.0.1", AdditionalIps: []*v1.PodIP{{Ip: "fd00::1"}}}
	ready := &v1.PodSandboxStatus{State: v1.PodSandboxState_SANDBOX_READY, Network: network}
	want.IPs = []string{"10.0.0.1", "fd00::1"}
	bare := want
	bare.IPs = nil
	assert.Equal(t, want, AddSandboxStatus(bare, ready))
	assert.Empty(t, AddSandboxStatus(bare, &v1.PodSandboxStatus{}).IPs)
	ended := AddSandboxStatus(bare, &v1.PodSandboxStatus{State: v1.PodSandboxState_SANDBOX_NOTREADY})
	assert.Equal(t, runtime.SandboxNotReady, ended.State)
	onNode := AddSandboxStatus(bare, &v1.PodSandboxStatus{Network: network, Linux: &v1.LinuxPodSandboxStatus{Namespaces: &v1.Namespace{
		Options: &v1.NamespaceOption{Network: v1.NamespaceMode_NODE},
	}}})
	assert.True(t, onNode.HostNetwork)
	assert.Empty(t, onNode.IPs, "the node's addresses are not the pod's")
}

// A limit that is too low for its period is reported as the lowest that the kernel has.
func TestResourcesOf_LowestLimitOfThePeriod(t *testing.T) {
	tr := &Translator{Node: Node{CPUQuotaPeriod: 5 * time.Millisecond}, Pod: &corev1.Pod{}}
	for limit, want := range map[string]string{"50m": "200m", "200m": "200m", "201m": "201m", "333m": "333m"} {
		spec := &corev1.Container{Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(limit)}}}
		got := resourcesOf(tr.Resources(spec))
		assert.Equal(t, want, got.CPULimit.String(), limit)
		assert.Equal(t, int64(200), got.MinCPULimit)
	}
}

func TestAddContainerStatus(t *testing.T) {
	got := AddContainerStatus(runtime.Container{ID: "id", Image: "old", ImageID: "old"}, &v1.ContainerStatus{
		State: v1.ContainerState_CONTAINER_EXITED, StartedAt: 2, FinishedAt: 3, ExitCode: 1, Reason: "Error", Message: "died", LogPath: "/log",
		ImageId: "sha256:1", ImageRef: "reg/app@sha256:1", Image: &v1.ImageSpec{Image: "app"}, StopSignal: v1.Signal_SIGNAL_SIGRTMINPLUS3,
		Resources: &v1.ContainerResources{Linux: &v1.LinuxContainerResources{CpuShares: 512, CpuQuota: 50_000, CpuPeriod: 100_000, MemoryLimitInBytes: 1 << 20, CpusetCpus: "1-2", CpusetMems: "0"}},
		User:      &v1.ContainerUser{Linux: &v1.LinuxContainerUser{Uid: 1, Gid: 2, SupplementalGroups: []int64{3}}},
	})
	assert.Equal(t, "500m", got.Resources.CPURequest.String())
	assert.Equal(t, runtime.Cpuset{CPUs: "1-2", MemoryNodes: "0"}, got.Resources.Cpuset)
	assert.Equal(t, "500m", got.Resources.CPULimit.String())
	assert.Equal(t, int64(10), got.Resources.MinCPULimit)
	assert.Equal(t, "1Mi", got.Resources.MemoryLimit.String())
	got.Resources = nil
	assert.Equal(t, runtime.Container{
		ID: "id", State: runtime.Exited, Started: time.Unix(0, 2), Finished: time.Unix(0, 3), ExitCode: 1, Reason: "Error", Message: "died",
		LogPath: "/log", Image: "app", ImageID: "reg/app@sha256:1", StopSignal: "SIGRTMIN+3",
		User: &corev1.ContainerUser{Linux: &corev1.LinuxContainerUser{UID: 1, GID: 2, SupplementalGroups: []int64{3}}},
	}, got)

	kept := runtime.Container{State: runtime.Running, Image: "app", ImageID: "sha256:1"}
	for name, tc := range map[string]struct {
		status *v1.ContainerStatus
		want   runtime.Container
	}{
		"what is not reported stays":   {&v1.ContainerStatus{State: v1.ContainerState_CONTAINER_RUNNING}, kept},
		"a reference without a digest": {&v1.ContainerStatus{State: v1.ContainerState_CONTAINER_RUNNING, ImageId: "sha256:1", ImageRef: "x"}, kept},
		"nothing is bounded": {
			&v1.ContainerStatus{State: v1.ContainerState_CONTAINER_RUNNING, Resources: &v1.ContainerResources{Linux: &v1.LinuxContainerResources{CpuPeriod: 1}}},
			runtime.Container{State: runtime.Running, Image: "app", ImageID: "sha256:1", Resources: &runtime.Resources{}},
		},
		"a quota without a period": {
			&v1.ContainerStatus{State: v1.ContainerState_CONTAINER_RUNNING, Resources: &v1.ContainerResources{Linux: &v1.LinuxContainerResources{CpuQuota: 1}}},
			runtime.Container{State: runtime.Running, Image: "app", ImageID: "sha256:1", Resources: &runtime.Resources{}},
		},
	} {
		assert.Equal(t, tc.want, AddContainerStatus(kept, tc.status), name)
	}
}

func TestContainerUsage(t *testing.T) {
	number := func(n uint64) *v1.UInt64Value { return &v1.UInt64Value{Value: n} }
	attributes := &v1.ContainerAttributes{Id: "id", Metadata: &v1.ContainerMetadata{Name: "main"}}
	memory := &v1.MemoryUsage{
		Timestamp: 11, WorkingSetBytes: number(100), AvailableBytes: number(50), UsageBytes: number(120), RssBytes: number(90),
		PageFaults: number(3), MajorPageFaults: number(1),
	}
	cpu := &v1.CpuUsage{Timestamp: 10, UsageCoreNanoSeconds: number(5), UsageNanoCores: number(6)}
	wantMemory := runtime.MemoryUsage{At: time.Unix(0, 11), Capacity: 150, Usage: 120, WorkingSet: 100, RSS: 90, PageFaults: 3, MajorFaults: 1}
	wantCPU := runtime.CPUUsage{At: time.Unix(0, 10), UsageCoreNanoSeconds: 5, UsageNanoCores: 6, HasRate: true}
	for name, tc := range map[string]struct {
		stats *v1.ContainerStats
		want  runtime.ContainerUsage
	}{
		"all": {
			&v1.ContainerStats{Attributes: attributes, Memory: memory, Cpu: cpu, WritableLayer: &v1.FilesystemUsage{Timestamp: 12, UsedBytes: number(7), InodesUsed: number(2)}},
			runtime.ContainerUsage{Running: true, Memory: wantMemory, CPU: wantCPU, Rootfs: runtime.DiskUsage{At: time.Unix(0, 12), Bytes: 7, Inodes: 2}},
		},
		"memory alone": {&v1.ContainerStats{Attributes: attributes, Memory: memory}, runtime.ContainerUsage{Running: true, Memory: wantMemory}},
		"cpu alone":    {&v1.ContainerStats{Attributes: attributes, Cpu: cpu}, runtime.ContainerUsage{Running: true, CPU: wantCPU}},
		"no limit, no rate": {
			&v1.ContainerStats{Attributes: attributes, Memory: &v1.MemoryUsage{Timestamp: 11, WorkingSetBytes: number(1)}, Cpu: &v1.CpuUsage{Timestamp: 10, UsageCoreNanoSeconds: number(5)}},
			runtime.ContainerUsage{
				Running: true, Memory: runtime.MemoryUsage{At: time.Unix(0, 11), WorkingSet: 1}, CPU: runtime.CPUUsage{At: time.Unix(0, 10), UsageCoreNanoSeconds: 5},
			},
		},
		"swap and pressure": {
			&v1.ContainerStats{
				Attributes: attributes, Swap: &v1.SwapUsage{Timestamp: 13, SwapUsageBytes: number(4), SwapAvailableBytes: number(0)},
				Cpu:    &v1.CpuUsage{Timestamp: 10, UsageCoreNanoSeconds: number(5), Psi: &v1.PsiStats{Some: &v1.PsiData{Total: 7_000, Avg10: 1, Avg60: 2, Avg300: 3}}},
				Memory: &v1.MemoryUsage{Timestamp: 11, Psi: &v1.PsiStats{Full: &v1.PsiData{Total: 8_999}}},
				Io:     &v1.IoUsage{Timestamp: 14, Psi: &v1.PsiStats{}},
			},
			runtime.ContainerUsage{
				Running: true, CPU: runtime.CPUUsage{At: time.Unix(0, 10), UsageCoreNanoSeconds: 5},
				Swap:           runtime.SwapUsage{At: time.Unix(0, 13), Usage: 4, Limit: 4, HasLimit: true},
				CPUPressure:    runtime.PSIStats{At: time.Unix(0, 10), Some: runtime.PSIData{Total: 7, Avg10: 1, Avg60: 2, Avg300: 3}},
				MemoryPressure: runtime.PSIStats{At: time.Unix(0, 11), Full: runtime.PSIData{Total: 8}},
				IOPressure:     runtime.PSIStats{At: time.Unix(0, 14)},
			},
		},
		"swap without a limit": {
			&v1.ContainerStats{Attributes: attributes, Swap: &v1.SwapUsage{Timestamp: 13, SwapUsageBytes: number(4)}},
			runtime.ContainerUsage{Swap: runtime.SwapUsage{At: time.Unix(0, 13), Usage: 4}},
		},
		"swap without a limit, as the largest number": {
			&v1.ContainerStats{Attributes: attributes, Swap: &v1.SwapUsage{Timestamp: 13, SwapUsageBytes: number(4), SwapAvailableBytes: number(1<<64 - 1)}},
			runtime.ContainerUsage{Swap: runtime.SwapUsage{At: time.Unix(0, 13), Usage: 4}},
		},
		"nothing was measured": {
			&v1.ContainerStats{Attributes: attributes, Swap: &v1.SwapUsage{Timestamp: 13}, Io: &v1.IoUsage{Timestamp: 14}, Memory: &v1.MemoryUsage{Timestamp: 11}, Cpu: &v1.CpuUsage{Timestamp: 10}, WritableLayer: &v1.FilesystemUsage{Timestamp: 12}},
			runtime.ContainerUsage{},
		},
	} {
		tc.want.PodUID, tc.want.ID, tc.want.Name = "uid-1", "id", "main"
		assert.Equal(t, tc.want, ContainerUsage("uid-1", tc.stats), name)
	}
	assert.Equal(t, []runtime.FSUsage{{At: time.Unix(0, 1), Mountpoint: "/images", UsedBytes: 7, InodesUsed: 3}, {}}, FSUsages([]*v1.FilesystemUsage{
		{Timestamp: 1, FsId: &v1.FilesystemIdentifier{Mountpoint: "/images"}, UsedBytes: number(7), InodesUsed: number(3)}, {Timestamp: -1},
	}))
}
