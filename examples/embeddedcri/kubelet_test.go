package main

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// TestKubeletStarts makes the calls that a kubelet of 1.36 or 1.37 makes when it
// starts in standalone mode and runs a static pod, in its order, and asserts what it
// goes by in the answers.
func TestKubeletStarts(t *testing.T) {
	for _, executor := range []string{"host", "simulated"} {
		t.Run(executor, func(t *testing.T) {
			dir := t.TempDir()
			rs, is := serve(t, dir, executor)
			kubeletQueries(t, rs, is)
			kubeletRuns(t, rs, is, dir)
		})
	}
}

// kubeletQueries makes the queries of a kubelet before it runs pods, and periodically.
func kubeletQueries(t *testing.T, rs v1.RuntimeServiceClient, is v1.ImageServiceClient) {
	ctx := t.Context()
	version, err := rs.Version(ctx, &v1.VersionRequest{Version: "0.1.0"})
	require.NoError(t, err)
	assert.Equal(t, "0.1.0", version.GetVersion(), "it refuses to start with any other")
	assert.Equal(t, "v1", version.GetRuntimeApiVersion())
	assert.NotEmpty(t, version.GetRuntimeName(), "shown in the node's status")
	assert.Regexp(t, regexp.MustCompile(`^v?\d+\.\d+\.\d+`), version.GetRuntimeVersion(), "it is parsed")

	config, err := rs.RuntimeConfig(ctx, &v1.RuntimeConfigRequest{})
	require.NoError(t, err)
	assert.Equal(t, v1.CgroupDriver_CGROUPFS, config.GetLinux().GetCgroupDriver(), "it takes this driver for its own")

	st, err := rs.Status(ctx, &v1.StatusRequest{})
	require.NoError(t, err)
	conditions := map[string]bool{}
	for _, c := range st.GetStatus().GetConditions() {
		conditions[c.GetType()] = c.GetStatus()
	}
	assert.Equal(t, map[string]bool{"RuntimeReady": true, "NetworkReady": true}, conditions, "the node is not ready without")
	require.NotEmpty(t, st.GetRuntimeHandlers())
	assert.Empty(t, st.GetRuntimeHandlers()[0].GetName(), "the default handler is among them")
	assert.NotNil(t, st.GetRuntimeHandlers()[0].GetFeatures())
	assert.NotNil(t, st.GetFeatures())

	fs, err := is.ImageFsInfo(ctx, &v1.ImageFsInfoRequest{})
	require.NoError(t, err)
	for _, list := range [][]*v1.FilesystemUsage{fs.GetImageFilesystems(), fs.GetContainerFilesystems()} {
		require.NotEmpty(t, list, "without both the eviction manager has no figures")
		assert.NotZero(t, list[0].GetTimestamp())
		assert.NotNil(t, list[0].GetUsedBytes())
		assert.NotNil(t, list[0].GetInodesUsed())
		_, err := os.Stat(list[0].GetFsId().GetMountpoint())
		assert.NoError(t, err, "it looks up the device of this path")
	}
	_, err = rs.UpdateRuntimeConfig(ctx, &v1.UpdateRuntimeConfigRequest{RuntimeConfig: &v1.RuntimeConfig{
		NetworkConfig: &v1.NetworkConfig{PodCidr: "10.1.0.0/24"},
	}})
	assert.NoError(t, err)
	descriptors, err := rs.ListMetricDescriptors(ctx, &v1.ListMetricDescriptorsRequest{})
	require.NoError(t, err)
	assert.NotEmpty(t, descriptors.GetDescriptors())
	for what, call := range map[string]func() (int, error){
		"pods": func() (int, error) {
			r, err := rs.ListPodSandbox(ctx, &v1.ListPodSandboxRequest{Filter: &v1.PodSandboxFilter{}})
			return len(r.GetItems()), err
		},
		"containers": func() (int, error) {
			r, err := rs.ListContainers(ctx, &v1.ListContainersRequest{Filter: &v1.ContainerFilter{}})
			return len(r.GetContainers()), err
		},
		"container stats": func() (int, error) {
			r, err := rs.ListContainerStats(ctx, &v1.ListContainerStatsRequest{})
			return len(r.GetStats()), err
		},
		"pod stats": func() (int, error) {
			r, err := rs.ListPodSandboxStats(ctx, &v1.ListPodSandboxStatsRequest{})
			return len(r.GetStats()), err
		},
		"pod metrics": func() (int, error) {
			r, err := rs.ListPodSandboxMetrics(ctx, &v1.ListPodSandboxMetricsRequest{})
			return len(r.GetPodMetrics()), err
		},
		"images": func() (int, error) {
			r, err := is.ListImages(ctx, &v1.ListImagesRequest{})
			return len(r.GetImages()), err
		},
	} {
		n, err := call()
		assert.NoError(t, err, what)
		assert.Zero(t, n, what)
	}
}

// kubeletRuns is the life of a static pod.
func kubeletRuns(t *testing.T, rs v1.RuntimeServiceClient, is v1.ImageServiceClient, dir string) {
	const image = "docker.io/library/busybox:latest"
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	events, err := rs.GetContainerEvents(ctx, &v1.GetEventsRequest{})
	require.NoError(t, err)
	_, err = events.Header() // subscribed: a kubelet does not wait, but lists the pods as well
	require.NoError(t, err)

	logs := filepath.Join(dir, "pods", "default_web-node_1")
	require.NoError(t, os.MkdirAll(filepath.Join(logs, "main"), 0o755))
	labels := map[string]string{
		"io.kubernetes.pod.name": "web-node", "io.kubernetes.pod.namespace": "default", "io.kubernetes.pod.uid": "1",
	}
	annotations := map[string]string{"kubernetes.io/config.source": "file", "kubernetes.io/config.hash": "1"}
	sandbox := &v1.PodSandboxConfig{
		Metadata: &v1.PodSandboxMetadata{Name: "web-node", Namespace: "default", Uid: "1"}, Hostname: "web-node",
		LogDirectory: logs, Labels: labels, Annotations: annotations, DnsConfig: &v1.DNSConfig{Servers: []string{"9.9.9.9"}},
		PortMappings: []*v1.PortMapping{{ContainerPort: 80}},
		Linux: &v1.LinuxPodSandboxConfig{CgroupParent: "/kubepods/besteffort/pod1", SecurityContext: &v1.LinuxSandboxSecurityContext{
			NamespaceOptions: &v1.NamespaceOption{Pid: v1.NamespaceMode_CONTAINER}, Seccomp: &v1.SecurityProfile{ProfileType: v1.SecurityProfile_RuntimeDefault},
		}, Overhead: &v1.LinuxContainerResources{}, Resources: &v1.LinuxContainerResources{CpuShares: 2}},
	}
	run, err := rs.RunPodSandbox(ctx, &v1.RunPodSandboxRequest{Config: sandbox})
	require.NoError(t, err)
	pod := run.GetPodSandboxId()
	observed, err := rs.PodSandboxStatus(ctx, &v1.PodSandboxStatusRequest{PodSandboxId: pod})
	require.NoError(t, err)
	assert.NotNil(t, net.ParseIP(observed.GetStatus().GetNetwork().GetIp()), "the pod's address is parsed")
	assert.Equal(t, labels, observed.GetStatus().GetLabels())
	assert.Equal(t, annotations, observed.GetStatus().GetAnnotations(), "by these a restarted kubelet knows the pod")
	assert.NotZero(t, observed.GetStatus().GetCreatedAt())
	assert.NotZero(t, observed.GetTimestamp(), "newer than what the cache has")

	absent, err := is.ImageStatus(ctx, &v1.ImageStatusRequest{Image: &v1.ImageSpec{Image: image}})
	require.NoError(t, err, "an image that is not there is no error")
	require.Nil(t, absent.GetImage())
	pulled, err := is.PullImage(ctx, &v1.PullImageRequest{Image: &v1.ImageSpec{Image: image, UserSpecifiedImage: image}, SandboxConfig: sandbox})
	require.NoError(t, err)
	there, err := is.ImageStatus(ctx, &v1.ImageStatusRequest{Image: &v1.ImageSpec{Image: pulled.GetImageRef()}})
	require.NoError(t, err)
	assert.NotZero(t, there.GetImage().GetSize())

	config := &v1.ContainerConfig{
		Metadata: &v1.ContainerMetadata{Name: "main"},
		Image:    &v1.ImageSpec{Image: pulled.GetImageRef(), UserSpecifiedImage: image},
		Command:  []string{"sh", "-c", "echo up; exec sleep 1000"}, LogPath: "main/0.log",
		Labels: map[string]string{"io.kubernetes.container.name": "main", "io.kubernetes.pod.uid": "1"},
		Annotations: map[string]string{
			"io.kubernetes.container.hash": "abc", "io.kubernetes.container.restartCount": "0",
			"io.kubernetes.container.terminationMessagePath": "/dev/termination-log", "io.kubernetes.container.terminationMessagePolicy": "File",
			"io.kubernetes.pod.terminationGracePeriod": "30",
		},
		Linux: &v1.LinuxContainerConfig{
			Resources: &v1.LinuxContainerResources{CpuPeriod: 100000, CpuShares: 2, OomScoreAdj: 1000, HugepageLimits: []*v1.HugepageLimit{{PageSize: "2MB"}}},
			SecurityContext: &v1.LinuxContainerSecurityContext{
				NamespaceOptions: &v1.NamespaceOption{Pid: v1.NamespaceMode_CONTAINER}, RunAsUser: &v1.Int64Value{Value: int64(os.Geteuid())},
				MaskedPaths: []string{"/proc/acpi"}, ReadonlyPaths: []string{"/proc/bus"}, Seccomp: &v1.SecurityProfile{ProfileType: v1.SecurityProfile_Unconfined},
			},
		},
	}
	for _, file := range []string{"/etc/hosts", "/dev/termination-log"} {
		path := filepath.Join(dir, filepath.Base(file))
		require.NoError(t, os.WriteFile(path, nil, 0o666))
		config.Mounts = append(config.Mounts, &v1.Mount{ContainerPath: file, HostPath: path})
	}
	made, err := rs.CreateContainer(ctx, &v1.CreateContainerRequest{PodSandboxId: pod, Config: config, SandboxConfig: sandbox})
	require.NoError(t, err)
	_, err = rs.StartContainer(ctx, &v1.StartContainerRequest{ContainerId: made.GetContainerId()})
	require.NoError(t, err)

	resp, err := rs.ContainerStatus(ctx, &v1.ContainerStatusRequest{ContainerId: made.GetContainerId()})
	require.NoError(t, err)
	ct := resp.GetStatus()
	assert.Equal(t, v1.ContainerState_CONTAINER_RUNNING, ct.GetState())
	assert.Equal(t, config.GetAnnotations(), ct.GetAnnotations())
	assert.Equal(t, config.GetLabels(), ct.GetLabels())
	assert.Equal(t, pulled.GetImageRef(), ct.GetImageId(), "or images in use would be collected")
	assert.NotEmpty(t, ct.GetImageRef())
	assert.Equal(t, image, ct.GetImage().GetUserSpecifiedImage())
	assert.GreaterOrEqual(t, ct.GetStartedAt(), ct.GetCreatedAt())
	assert.Equal(t, filepath.Join(logs, "main", "0.log"), ct.GetLogPath())
	assert.Len(t, ct.GetMounts(), 2)

	stats, err := rs.ListPodSandboxStats(ctx, &v1.ListPodSandboxStatsRequest{})
	require.NoError(t, err)
	require.Len(t, stats.GetStats(), 1)
	assert.Equal(t, pod, stats.GetStats()[0].GetAttributes().GetId())
	require.Len(t, stats.GetStats()[0].GetLinux().GetContainers(), 1)
	of := stats.GetStats()[0].GetLinux().GetContainers()[0]
	assert.NotNil(t, of.GetCpu().GetUsageCoreNanoSeconds())
	assert.NotNil(t, of.GetMemory().GetWorkingSetBytes())
	assert.NotNil(t, of.GetWritableLayer().GetUsedBytes())

	_, err = rs.StopContainer(ctx, &v1.StopContainerRequest{ContainerId: made.GetContainerId(), Timeout: 30})
	require.NoError(t, err)
	resp, err = rs.ContainerStatus(ctx, &v1.ContainerStatusRequest{ContainerId: made.GetContainerId()})
	require.NoError(t, err)
	assert.Equal(t, v1.ContainerState_CONTAINER_EXITED, resp.GetStatus().GetState())
	assert.NotEmpty(t, resp.GetStatus().GetReason())
	assert.GreaterOrEqual(t, resp.GetStatus().GetFinishedAt(), resp.GetStatus().GetStartedAt())
	_, err = rs.StopPodSandbox(ctx, &v1.StopPodSandboxRequest{PodSandboxId: pod})
	require.NoError(t, err)
	_, err = rs.RemovePodSandbox(ctx, &v1.RemovePodSandboxRequest{PodSandboxId: pod})
	require.NoError(t, err)
	_, err = rs.ContainerStatus(ctx, &v1.ContainerStatusRequest{ContainerId: made.GetContainerId()})
	assert.Equal(t, codes.NotFound, status.Code(err), "removed with its pod")

	kinds := map[v1.ContainerEventType]bool{}
	for len(kinds) < 4 {
		e, err := events.Recv()
		require.NoError(t, err)
		kinds[e.GetContainerEventType()] = true
		if st := e.GetPodSandboxStatus(); st != nil { // nil once it is gone
			assert.Equal(t, pod, st.GetId())
		}
	}
}
