//go:build linux

package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"text/template"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// TestCrictl makes the calls of crictl's commands and asks of the answers what the
// command makes of them. critest's helpers make the pods.
func TestCrictl(t *testing.T) {
	cases := map[string]func(critest){
		"runp, create, start, ps, pods": psAndPods,
		"run":                           func(c critest) { c.inNewPod(&v1.ContainerConfig{Command: []string{"sleep", "1000"}}) },
		"stop, stopp, rm -f, rmp -f":    stopAndRemove,
		"inspect, inspectp, inspecti, info by go-template": inspect,
		"pull, images, inspecti, rmi --prune, rmi":         images,
		"imagefsinfo": func(c critest) {
			c.pulled("example.com/some:1")
			resp, err := c.is.ImageFsInfo(c.Context(), &v1.ImageFsInfoRequest{})
			require.NoError(c, err)
			require.Len(c, resp.GetImageFilesystems(), 1)
			require.Len(c, resp.GetContainerFilesystems(), 1)
			assert.NotEmpty(c, resp.GetImageFilesystems()[0].GetFsId().GetMountpoint())
			assert.NotZero(c, resp.GetImageFilesystems()[0].GetTimestamp())
			c.json(resp)
		},
		"exec -s": func(c critest) {
			id := c.inNewPod(&v1.ContainerConfig{Command: []string{"sleep", "1000"}})
			resp, err := c.rs.ExecSync(c.Context(), &v1.ExecSyncRequest{ContainerId: id[:13], Cmd: []string{"sh", "-c", "echo out; echo err >&2; exit 3"}, Timeout: 60})
			require.NoError(c, err, "an exit code is no failure")
			assert.Equal(c, "out\nerr\n3", string(resp.GetStdout())+string(resp.GetStderr())+fmt.Sprint(resp.GetExitCode()))
		},
		"logs, logs --reopen": logs,
		"logs -f":             follow,
		"events":              events,
		"update": func(c critest) {
			id := c.inNewPod(&v1.ContainerConfig{Command: []string{"sleep", "1000"}, Linux: &v1.LinuxContainerConfig{
				Resources: &v1.LinuxContainerResources{CpuShares: 100, MemoryLimitInBytes: 1 << 20},
			}})
			// Flags that are not given come as 0, which is not specified.
			_, err := c.rs.UpdateContainerResources(c.Context(), &v1.UpdateContainerResourcesRequest{
				ContainerId: id[:13], Linux: &v1.LinuxContainerResources{MemoryLimitInBytes: 2 << 20},
			})
			require.NoError(c, err)
			got := c.container(id).GetResources().GetLinux()
			assert.Equal(c, []int64{100, 2 << 20}, []int64{got.GetCpuShares(), got.GetMemoryLimitInBytes()})
		},
		"update-runtime-config, runtime-config, version": func(c critest) {
			_, err := c.rs.UpdateRuntimeConfig(c.Context(), &v1.UpdateRuntimeConfigRequest{RuntimeConfig: &v1.RuntimeConfig{
				NetworkConfig: &v1.NetworkConfig{PodCidr: "10.1.0.0/24"},
			}})
			require.NoError(c, err)
			config, err := c.rs.RuntimeConfig(c.Context(), &v1.RuntimeConfigRequest{})
			require.NoError(c, err)
			assert.NotNil(c, config.GetLinux())
			version, err := c.rs.Version(c.Context(), &v1.VersionRequest{Version: "v1"})
			require.NoError(c, err)
			assert.Equal(c, "v1", version.GetRuntimeApiVersion())
			for _, part := range []string{version.GetVersion(), version.GetRuntimeName(), version.GetRuntimeVersion()} {
				assert.NotEmpty(c, part)
			}
		},
		"stats, statsp, metricsp, metricdescs": func(c critest) {
			id := c.inNewPod(&v1.ContainerConfig{Command: []string{"sleep", "1000"}})
			stats, err := c.rs.ListContainerStats(c.Context(), &v1.ListContainerStatsRequest{Filter: &v1.ContainerStatsFilter{Id: id[:13]}})
			require.NoError(c, err)
			require.Len(c, stats.GetStats(), 1)
			assert.NotNil(c, stats.GetStats()[0].GetCpu().GetUsageCoreNanoSeconds())
			assert.NotNil(c, stats.GetStats()[0].GetMemory().GetWorkingSetBytes())
			c.json(stats)
			pods, err := c.rs.ListPodSandboxStats(c.Context(), &v1.ListPodSandboxStatsRequest{})
			require.NoError(c, err)
			c.json(pods)
			metrics, err := c.rs.ListPodSandboxMetrics(c.Context(), &v1.ListPodSandboxMetricsRequest{})
			require.NoError(c, err)
			c.json(metrics)
			descs, err := c.rs.ListMetricDescriptors(c.Context(), &v1.ListMetricDescriptorsRequest{})
			require.NoError(c, err)
			c.json(descs)
		},
		"checkpoint, checkpointp": func(c critest) {
			_, err := c.rs.CheckpointContainer(c.Context(), &v1.CheckpointContainerRequest{ContainerId: "x", Location: "/x"})
			assert.Equal(c, codes.Unimplemented, status.Code(err))
			_, err = c.rs.CheckpointPod(c.Context(), &v1.CheckpointPodRequest{PodSandboxId: "x", OutputPath: "/x"})
			assert.Equal(c, codes.Unimplemented, status.Code(err))
		},
	}
	for _, executor := range []string{"host", "simulated"} {
		t.Run(executor, func(t *testing.T) {
			rs, is := serve(t, t.TempDir(), executor)
			for name, ask := range cases {
				t.Run(name, func(t *testing.T) { ask(critest{t, rs, is}) })
			}
			for name, ask := range streamCases() {
				if executor == "host" || strings.HasPrefix(name, "attach") {
					t.Run(name, func(t *testing.T) { ask(critest{t, rs, is}) })
				}
			}
		})
	}
}

// json is m as -o json prints it.
func (c critest) json(m proto.Message) string {
	c.Helper()
	b, err := protojson.MarshalOptions{EmitDefaultValues: true}.Marshal(m)
	require.NoError(c, err)
	return string(b)
}

// ps lists containers as crictl does, which is by running unless a filter is given.
func (c critest) ps(f *v1.ContainerFilter) (ids []string) {
	resp, err := c.rs.ListContainers(c.Context(), &v1.ListContainersRequest{Filter: f})
	require.NoError(c, err)
	c.json(resp)
	for _, it := range resp.GetContainers() {
		ids = append(ids, it.GetId())
	}
	return ids
}

func (c critest) pods(f *v1.PodSandboxFilter) (ids []string) {
	resp, err := c.rs.ListPodSandbox(c.Context(), &v1.ListPodSandboxRequest{Filter: f})
	require.NoError(c, err)
	c.json(resp)
	for _, it := range resp.GetItems() {
		ids = append(ids, it.GetId())
	}
	return ids
}

func psAndPods(c critest) {
	labels := map[string]string{"case": "ps"}
	pod, config := c.pod(&v1.PodSandboxConfig{Labels: labels})
	created, err := c.create(pod[:13], config, &v1.ContainerConfig{Command: []string{"sleep", "1000"}, Labels: labels})
	require.NoError(c, err)
	in := func(s v1.ContainerState) *v1.ContainerFilter {
		return &v1.ContainerFilter{State: &v1.ContainerStateValue{State: s}, LabelSelector: labels}
	}
	assert.Equal(c, []string{created}, c.ps(in(v1.ContainerState_CONTAINER_CREATED)))
	assert.Empty(c, c.ps(in(v1.ContainerState_CONTAINER_RUNNING)))
	_, err = c.rs.StartContainer(c.Context(), &v1.StartContainerRequest{ContainerId: created[:13]})
	require.NoError(c, err)
	assert.Equal(c, []string{created}, c.ps(in(v1.ContainerState_CONTAINER_RUNNING)))
	assert.Equal(c, []string{created}, c.ps(&v1.ContainerFilter{PodSandboxId: pod[:13]}))
	assert.Equal(c, []string{created}, c.ps(&v1.ContainerFilter{Id: created[:13]}))
	assert.Equal(c, c.status(busybox).GetId(), c.status(c.container(created).GetImage().GetImage()).GetId(), "--image compares the two")

	assert.Equal(c, []string{pod}, c.pods(&v1.PodSandboxFilter{Id: pod[:13]}))
	assert.Equal(c, []string{pod}, c.pods(&v1.PodSandboxFilter{LabelSelector: labels}))
	state := func(s v1.PodSandboxState) *v1.PodSandboxFilter {
		return &v1.PodSandboxFilter{State: &v1.PodSandboxStateValue{State: s}, LabelSelector: labels}
	}
	assert.Equal(c, []string{pod}, c.pods(state(v1.PodSandboxState_SANDBOX_READY)))
	assert.Empty(c, c.pods(state(v1.PodSandboxState_SANDBOX_NOTREADY)))
}

func stopAndRemove(c critest) {
	pod, config := c.pod(nil)
	// The signal of a grace period would end it with another code.
	id := c.started(pod, config, &v1.ContainerConfig{Command: []string{"sh", "-c", "trap 'exit 3' TERM; sleep 1000 & wait"}})
	_, err := c.rs.StopContainer(c.Context(), &v1.StopContainerRequest{ContainerId: id[:13], Timeout: 0})
	require.NoError(c, err)
	assert.Equal(c, int32(137), c.container(id).GetExitCode())
	_, err = c.rs.RemoveContainer(c.Context(), &v1.RemoveContainerRequest{ContainerId: id[:13]})
	require.NoError(c, err)
	_, err = c.rs.ContainerStatus(c.Context(), &v1.ContainerStatusRequest{ContainerId: id[:13]})
	assert.Equal(c, codes.NotFound, status.Code(err))

	_, err = c.rs.StopPodSandbox(c.Context(), &v1.StopPodSandboxRequest{PodSandboxId: pod[:13]})
	require.NoError(c, err)
	resp, err := c.rs.PodSandboxStatus(c.Context(), &v1.PodSandboxStatusRequest{PodSandboxId: pod[:13]})
	require.NoError(c, err)
	assert.Equal(c, v1.PodSandboxState_SANDBOX_NOTREADY, resp.GetStatus().GetState())
	_, err = c.rs.RemovePodSandbox(c.Context(), &v1.RemovePodSandboxRequest{PodSandboxId: pod[:13]})
	require.NoError(c, err)
	assert.Empty(c, c.pods(&v1.PodSandboxFilter{Id: pod}))
}

// shown is what a go-template makes of an answer. As in crictl, a key that is not
// there is a failure, and texts of info that begin with a brace are JSON.
func (c critest) shown(text string, m proto.Message, info map[string]string) string {
	c.Helper()
	data := map[string]any{}
	var value map[string]any
	require.NoError(c, json.Unmarshal([]byte(c.json(m)), &value))
	data["status"] = value
	for k, v := range info {
		if !strings.HasPrefix(v, "{") {
			data[k] = strings.Trim(v, `"`)
			continue
		}
		var object map[string]any
		require.NoError(c, json.Unmarshal([]byte(v), &object))
		data[k] = object
	}
	var b strings.Builder
	require.NoError(c, template.Must(template.New("").Option("missingkey=error").Parse(text)).Execute(&b, data))
	return b.String()
}

func inspect(c critest) {
	pod, config := c.pod(nil)
	id := c.started(pod, config, &v1.ContainerConfig{Command: []string{"sleep", "1000"}, Envs: []*v1.KeyValue{{Key: "TOKEN", Value: []byte("secret")}}})
	ct, err := c.rs.ContainerStatus(c.Context(), &v1.ContainerStatusRequest{ContainerId: id, Verbose: true})
	require.NoError(c, err)
	assert.Equal(c, "CONTAINER_RUNNING "+pod, c.shown("{{.status.state}} {{.info.sandboxID}}", ct.GetStatus(), ct.GetInfo()))
	assert.NotContains(c, fmt.Sprint(ct.GetInfo()), "secret")
	if strings.Contains(c.Name(), "/host/") {
		pid := c.shown("{{.info.pid}}", ct.GetStatus(), ct.GetInfo())
		assert.DirExists(c, filepath.Join("/proc", pid))
	}
	sb, err := c.rs.PodSandboxStatus(c.Context(), &v1.PodSandboxStatusRequest{PodSandboxId: pod, Verbose: true})
	require.NoError(c, err)
	assert.Equal(c, "critest "+sb.GetStatus().GetNetwork().GetIp(),
		c.shown("{{.info.config.metadata.namespace}} {{.status.network.ip}}", sb.GetStatus(), sb.GetInfo()))
	img, err := c.is.ImageStatus(c.Context(), &v1.ImageStatusRequest{Image: &v1.ImageSpec{Image: staging + "test-image-user-uid"}, Verbose: true})
	require.NoError(c, err)
	assert.Nil(c, img.GetImage(), "not pulled: no such image")
	c.pulled(staging + "test-image-user-uid")
	img, err = c.is.ImageStatus(c.Context(), &v1.ImageStatusRequest{Image: &v1.ImageSpec{Image: staging + "test-image-user-uid"}, Verbose: true})
	require.NoError(c, err)
	assert.Equal(c, "1002", c.shown("{{.info.imageSpec.config.User}}", img.GetImage(), img.GetInfo()))
	st, err := c.rs.Status(c.Context(), &v1.StatusRequest{Verbose: true})
	require.NoError(c, err)
	assert.Equal(c, "RuntimeReady", c.shown("{{(index .status.conditions 0).type}}{{with .info.containers}}{{end}}", st.GetStatus(), st.GetInfo()))
}

func images(c critest) {
	auth := &v1.AuthConfig{Username: "me", Password: "secret"}
	pod, sandbox := c.pod(nil)
	pull := func(ref string) *v1.Image {
		_, err := c.is.PullImage(c.Context(), &v1.PullImageRequest{
			Image: &v1.ImageSpec{Image: ref, Annotations: map[string]string{"a": "b"}}, Auth: auth, SandboxConfig: sandbox,
		})
		require.NoError(c, err)
		return c.status(ref)
	}
	used, unused := c.pulled(busybox), pull("registry.example:5000/some/thing:1.2")
	c.started(pod, sandbox, &v1.ContainerConfig{Command: []string{"sleep", "1000"}, Image: &v1.ImageSpec{Image: used.GetId()}})

	list, err := c.is.ListImages(c.Context(), &v1.ListImagesRequest{Filter: &v1.ImageFilter{Image: &v1.ImageSpec{}}})
	require.NoError(c, err)
	c.json(list)
	ids := map[string]bool{}
	for _, img := range list.GetImages() {
		repo, digest, ok := strings.Cut(img.GetRepoDigests()[0], "@sha256:")
		assert.True(c, ok && repo != "" && digest != "", "the columns image and digest")
		for _, tag := range img.GetRepoTags() {
			assert.Contains(c, tag, ":", "the column tag")
		}
		ids[img.GetId()] = true
	}
	assert.True(c, ids[used.GetId()] && ids[unused.GetId()])
	list, err = c.is.ListImages(c.Context(), &v1.ListImagesRequest{Filter: &v1.ImageFilter{Image: &v1.ImageSpec{Image: "registry.example:5000/some/thing:1.2"}}})
	require.NoError(c, err)
	assert.Len(c, list.GetImages(), 1)
	short := strings.TrimPrefix(unused.GetId(), "sha256:")[:13]
	assert.Equal(c, unused.GetId(), c.status(short).GetId(), "by the ID that the table shows")

	// rmi --prune removes what no container's image names.
	for _, it := range c.ps(nil) {
		delete(ids, c.status(c.container(it).GetImage().GetImage()).GetId())
	}
	assert.False(c, ids[used.GetId()])
	for id := range ids {
		_, err := c.is.RemoveImage(c.Context(), &v1.RemoveImageRequest{Image: &v1.ImageSpec{Image: id}})
		require.NoError(c, err)
	}
	assert.Nil(c, c.status(unused.GetId()))
	assert.NotNil(c, c.status(used.GetId()))
}

func logs(c critest) {
	pod, config := c.pod(&v1.PodSandboxConfig{LogDirectory: filepath.Join(c.TempDir(), "made", "by", "the runtime")})
	id := c.started(pod, config, &v1.ContainerConfig{Command: []string{"sleep", "1000"}, LogPath: "c/0.log"})
	path := c.container(id).GetLogPath()
	assert.Equal(c, filepath.Join(config.GetLogDirectory(), "c/0.log"), path)
	require.FileExists(c, path, "a silent container has a log to be followed")
	require.NoError(c, os.Rename(path, path+".old"))
	_, err := c.rs.ReopenContainerLog(c.Context(), &v1.ReopenContainerLogRequest{ContainerId: id[:13]})
	require.NoError(c, err)
	assert.FileExists(c, path)
	_, err = c.rs.RemoveContainer(c.Context(), &v1.RemoveContainerRequest{ContainerId: id})
	require.NoError(c, err)
	assert.FileExists(c, path, "rm removes it, unless told to keep it")
}

// follow reads on until the container's status says that there is no more, as
// logs -f does, and must then have it all.
func follow(c critest) {
	pod, config := c.pod(&v1.PodSandboxConfig{LogDirectory: c.TempDir()})
	id := c.started(pod, config, &v1.ContainerConfig{Command: []string{"sh", "-c", "echo one; sleep 0.2; echo two >&2; sleep 0.2; echo three"}, LogPath: "0.log"})
	for running := true; running; time.Sleep(10 * time.Millisecond) {
		running = c.container(id).GetState() == v1.ContainerState_CONTAINER_RUNNING
	}
	text, err := os.ReadFile(c.container(id).GetLogPath())
	require.NoError(c, err)
	var lines []string
	last := time.Time{}
	for line := range strings.Lines(string(text)) {
		stamp, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		at, err := time.Parse(time.RFC3339Nano, stamp)
		require.NoError(c, err, "--since and -t read it")
		assert.False(c, at.Before(last))
		last = at
		lines = append(lines, rest)
	}
	assert.Equal(c, []string{"stdout F one", "stderr F two", "stdout F three"}, lines)
}

func events(c critest) {
	stream, err := c.rs.GetContainerEvents(c.Context(), &v1.GetEventsRequest{})
	require.NoError(c, err)
	_, err = stream.Header()
	require.NoError(c, err)
	id := c.inNewPod(&v1.ContainerConfig{Command: []string{"sleep", "1000"}})
	var got []string
	for len(got) < 2 {
		e, err := stream.Recv()
		require.NoError(c, err)
		c.json(e)
		assert.NotNil(c, e.GetPodSandboxStatus())
		if e.GetContainerId() == id {
			got = append(got, e.GetContainerEventType().String())
		}
	}
	assert.Equal(c, []string{"CONTAINER_CREATED_EVENT", "CONTAINER_STARTED_EVENT"}, got)
}
