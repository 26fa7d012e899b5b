//go:build linux

package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

const (
	staging = "gcr.io/k8s-staging-cri-tools/"
	e2e     = "registry.k8s.io/e2e-test-images/"
	busybox = e2e + "busybox:1.29-2"
)

// critest asks one served runtime what the case of that name asks.
type critest struct {
	*testing.T
	rs v1.RuntimeServiceClient
	is v1.ImageServiceClient
}

// TestCritest has the questions of critest's cases that need no isolation, by the
// names that the cases have there. host cases look into containers.
func TestCritest(t *testing.T) {
	both := map[string]func(critest){
		"public image with tag should be pulled and removed": func(c critest) {
			img := c.pulled(staging + "test-image-tag:test")
			assert.Equal(c, []string{staging + "test-image-tag:test"}, img.GetRepoTags())
			assert.NotZero(c, img.GetSize())
		},
		"public image without tag should be pulled and removed": func(c critest) {
			assert.Equal(c, []string{staging + "test-image-latest:latest"}, c.pulled(staging+"test-image-latest").GetRepoTags())
		},
		"public image with digest should be pulled and removed": func(c critest) {
			ref := staging + "test-image-digest@sha256:9700f9a2f5bf2c45f2f605a0bd3bce7cf37420ec9d3ed50ac2758413308766bf"
			img := c.pulled(ref)
			assert.Empty(c, img.GetRepoTags())
			assert.Equal(c, []string{ref}, img.GetRepoDigests())
		},
		"public image should timeout if requested": func(c critest) {
			ctx, cancel := context.WithTimeout(c.Context(), time.Millisecond)
			defer cancel()
			_, err := c.is.PullImage(ctx, &v1.PullImageRequest{Image: &v1.ImageSpec{Image: staging + "test-image-tag:test"}})
			assert.Equal(c, codes.DeadlineExceeded, status.Code(err))
		},
		"image status should support all kinds of references": func(c critest) {
			img := c.pulled(staging + "test-image-tag:all")
			for _, ref := range slices.Concat([]string{img.GetId()}, img.GetRepoTags(), img.GetRepoDigests()) {
				assert.Equal(c, img.String(), c.status(ref).String(), ref)
			}
		},
		"image status get image fields should not have Uid|Username empty": func(c critest) {
			for name, want := range map[string]*v1.Image{
				"uid": {Uid: &v1.Int64Value{Value: 1002}}, "username": {Username: "www-data"},
				"uid-group": {Uid: &v1.Int64Value{Value: 1003}}, "username-group": {Username: "www-data"},
			} {
				img := c.pulled(staging + "test-image-user-" + name)
				assert.Equal(c, want.GetUid().GetValue(), img.GetUid().GetValue(), name)
				assert.Equal(c, want.GetUsername(), img.GetUsername(), name)
			}
		},
		"listImage should get exactly 3 image in the result list": func(c critest) {
			ids := map[string]bool{}
			for i := 1; i <= 3; i++ {
				img := c.pulled(fmt.Sprintf("%stest-image-%d:latest", staging, i))
				assert.Len(c, img.GetRepoTags(), 1)
				ids[img.GetId()] = true
			}
			assert.Len(c, ids, 3)
		},
		"removing image by one tag should remove all tags": func(c critest) {
			c.oneImage(staging+"test-image-tags:1", staging+"test-image-tags:2", staging+"test-image-tags:3")
		},
		"removing image from one registry should remove all tags from other registries": func(c critest) {
			c.oneImage("registry.example/mirrored:1", "mirror.example/of/mirrored:1")
		},
		"should not fail on simultaneous RemoveImage calls": func(c critest) {
			id := c.pulled(busybox).GetId()
			var wg sync.WaitGroup
			for range 5 {
				wg.Go(func() {
					_, err := c.is.RemoveImage(c.Context(), &v1.RemoveImageRequest{Image: &v1.ImageSpec{Image: id}})
					assert.NoError(c, err)
					assert.Nil(c, c.status(id))
				})
			}
			wg.Wait()
		},
		"should return the same image identifier across all APIs": func(c critest) {
			resp, err := c.is.PullImage(c.Context(), &v1.PullImageRequest{Image: &v1.ImageSpec{Image: staging + "test-image-tag:test"}})
			require.NoError(c, err)
			pod, config := c.pod(nil)
			id := c.started(pod, config, &v1.ContainerConfig{Image: &v1.ImageSpec{Image: resp.GetImageRef()}})
			list, err := c.rs.ListContainers(c.Context(), &v1.ListContainersRequest{Filter: &v1.ContainerFilter{Id: id}})
			require.NoError(c, err)
			for _, got := range []string{c.status(staging + "test-image-tag:test").GetId(), c.container(id).GetImageId(), list.GetContainers()[0].GetImageId()} {
				assert.Equal(c, resp.GetImageRef(), got)
			}
		},
		"runtime should support removing running container": func(c critest) {
			pod, config := c.pod(nil)
			id := c.started(pod, config, &v1.ContainerConfig{Command: []string{"sh", "-c", "top"}})
			for range 2 {
				_, err := c.rs.RemoveContainer(c.Context(), &v1.RemoveContainerRequest{ContainerId: id})
				require.NoError(c, err)
			}
			list, err := c.rs.ListContainers(c.Context(), &v1.ListContainersRequest{Filter: &v1.ContainerFilter{Id: id}})
			require.NoError(c, err)
			assert.Empty(c, list.GetContainers())
		},
		"runtime should return error if RunAsGroup is set without RunAsUser": func(c critest) {
			pod, config := c.pod(nil)
			_, err := c.create(pod, config, &v1.ContainerConfig{Linux: &v1.LinuxContainerConfig{
				SecurityContext: &v1.LinuxContainerSecurityContext{RunAsGroup: &v1.Int64Value{Value: 1234}},
			}})
			assert.Error(c, err)
		},
		"runtime should support returning metrics descriptors": func(c critest) { c.metrics() },
	}
	host := map[string]func(critest){
		"runtime should support listing pod sandbox metrics": func(c critest) {
			pod, config := c.pod(nil)
			id := c.started(pod, config, &v1.ContainerConfig{Command: []string{"top"}, Linux: &v1.LinuxContainerConfig{Resources: &v1.LinuxContainerResources{
				CpuPeriod: 100000, CpuQuota: 20000, CpuShares: 1024, MemoryLimitInBytes: 64 << 20, MemorySwapLimitInBytes: 64 << 20,
			}}})
			c.exec(id, "sh", "-c", "for i in 1 2 3; do echo hello > /dev/null; done; ls / > /dev/null")
			keys, found := c.metrics(), map[string]bool{}
			resp, err := c.rs.ListPodSandboxMetrics(c.Context(), &v1.ListPodSandboxMetricsRequest{})
			require.NoError(c, err)
			for _, p := range resp.GetPodMetrics() {
				for _, ct := range p.GetContainerMetrics() {
					for _, m := range ct.GetMetrics() {
						found[m.GetName()] = true
						assert.Len(c, m.GetLabelValues(), keys[m.GetName()], m.GetName())
					}
				}
			}
			assert.Len(c, found, len(keys))
		},
		"timeout exec process should be gone": func(c critest) {
			pod, config := c.pod(nil)
			id := c.started(pod, config, &v1.ContainerConfig{Command: []string{"top"}})
			seconds := strconv.Itoa(4321 + os.Getpid()) // as no other process of the host has it
			_, err := c.rs.ExecSync(c.Context(), &v1.ExecSyncRequest{ContainerId: id, Cmd: []string{"sleep", seconds}, Timeout: 1})
			assert.Equal(c, codes.DeadlineExceeded, status.Code(err))
			assert.Empty(c, c.exec(id, "sh", "-c", "pgrep -xf 'sleep "+seconds+"' || true"))
			names := c.exec(id, "sh", "-c", `for p in $(grep -lz "^SUBLET_CONTAINER_ID=$SUBLET_CONTAINER_ID" /proc/[0-9]*/environ 2>/dev/null); do cat "${p%environ}comm" 2>/dev/null; done; true`)
			assert.NotEmpty(c, names)
			assert.NotContains(c, names, "sleep", "our own idle program has the name that is looked for")
		},
		"runtime should support SupplementalGroups": func(c critest) {
			c.root()
			pod, config := c.pod(nil)
			id := c.started(pod, config, &v1.ContainerConfig{Command: []string{"sh", "-c", "top"}, Linux: &v1.LinuxContainerConfig{
				SecurityContext: &v1.LinuxContainerSecurityContext{SupplementalGroups: []int64{1234, 5678}},
			}})
			assert.Subset(c, strings.Fields(c.exec(id, "id", "-G")), []string{"1234", "5678"})
		},
		"runtime should support DNS config": func(c critest) {
			c.root()
			pod, config := c.pod(&v1.PodSandboxConfig{DnsConfig: &v1.DNSConfig{Servers: []string{"10.10.10.10"}, Searches: []string{"google.com"}, Options: []string{"ndots:8"}}})
			got := c.exec(c.started(pod, config, &v1.ContainerConfig{Command: []string{"top"}}), "cat", "/etc/resolv.conf")
			for _, line := range []string{"nameserver 10.10.10.10", "search google.com", "options ndots:8"} {
				assert.Contains(c, got, line)
			}
		},
		"runtime should support port mapping with host port and container port": func(c critest) {
			port, at := freePort(c), freePort(c)
			pod, config := c.pod(&v1.PodSandboxConfig{PortMappings: []*v1.PortMapping{{ContainerPort: port, HostPort: at}}})
			c.started(pod, config, c.web(port))
			assert.Contains(c, c.page("127.0.0.1", at), "Welcome")
			_, err := c.rs.StopPodSandbox(c.Context(), &v1.StopPodSandboxRequest{PodSandboxId: pod})
			require.NoError(c, err)
			_, err = net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", at))
			assert.Error(c, err, "the host port is open after the pod's end")
		},
		"runtime should support port mapping with only container port": func(c critest) {
			port := freePort(c)
			pod, config := c.pod(&v1.PodSandboxConfig{PortMappings: []*v1.PortMapping{{ContainerPort: port}}})
			c.started(pod, config, c.web(port))
			st, err := c.rs.PodSandboxStatus(c.Context(), &v1.PodSandboxStatusRequest{PodSandboxId: pod})
			require.NoError(c, err)
			assert.Contains(c, c.page(st.GetStatus().GetNetwork().GetIp(), port), "Welcome")
		},
		"when running multiple containers in a pod should support container log": func(c critest) {
			port := freePort(c)
			pod, config := c.pod(&v1.PodSandboxConfig{LogDirectory: c.TempDir()})
			web := c.web(port)
			web.LogPath = "httpd.log"
			id := c.started(pod, config, web)
			require.Eventually(c, func() bool {
				text, err := os.ReadFile(c.container(id).GetLogPath())
				return err == nil && strings.Contains(string(text), "httpd")
			}, time.Minute, 10*time.Millisecond)
		},
	}
	maps.Copy(both, imageVolumeCases())
	maps.Copy(host, securityCases())
	maps.Copy(host, mountCases())
	for _, executor := range []string{"host", "simulated"} {
		t.Run(executor, func(t *testing.T) {
			rs, is := serve(t, t.TempDir(), executor)
			for name, ask := range both {
				t.Run(name, func(t *testing.T) { ask(critest{t, rs, is}) })
			}
			for name, ask := range host {
				if executor == "host" {
					t.Run(name, func(t *testing.T) { ask(critest{t, rs, is}) })
				}
			}
		})
	}
}

// root asserts that the case can be run at all: it needs another user or mounts.
func (c critest) root() {
	if os.Geteuid() != 0 {
		c.Skip("needs root")
	}
}

// pulled is an image as it is after its pull. It goes with the case.
func (c critest) pulled(ref string) *v1.Image {
	c.Helper()
	_, err := c.is.PullImage(c.Context(), &v1.PullImageRequest{Image: &v1.ImageSpec{Image: ref}})
	require.NoError(c, err)
	img := c.status(ref)
	require.NotNil(c, img)
	c.Cleanup(func() {
		_, err := c.is.RemoveImage(context.Background(), &v1.RemoveImageRequest{Image: &v1.ImageSpec{Image: img.GetId()}})
		assert.NoError(c, err)
	})
	return img
}

func (c critest) status(ref string) *v1.Image {
	resp, err := c.is.ImageStatus(c.Context(), &v1.ImageStatusRequest{Image: &v1.ImageSpec{Image: ref}})
	assert.NoError(c, err)
	return resp.GetImage()
}

// oneImage asserts that the names are those of one image, which goes with any.
func (c critest) oneImage(refs ...string) {
	var img *v1.Image
	for _, ref := range refs {
		img = c.pulled(ref)
	}
	assert.ElementsMatch(c, refs, img.GetRepoTags())
	_, err := c.is.RemoveImage(c.Context(), &v1.RemoveImageRequest{Image: &v1.ImageSpec{Image: refs[0]}})
	require.NoError(c, err)
	for _, ref := range append(refs, img.GetId()) {
		assert.Nil(c, c.status(ref), ref)
	}
}

// pod runs a sandbox for the length of the case.
func (c critest) pod(config *v1.PodSandboxConfig) (string, *v1.PodSandboxConfig) {
	if config == nil {
		config = &v1.PodSandboxConfig{}
	}
	config.Metadata = &v1.PodSandboxMetadata{Name: c.Name(), Namespace: "critest", Uid: c.Name(), Attempt: 2}
	if config.GetLinux() == nil {
		config.Linux = &v1.LinuxPodSandboxConfig{}
	}
	resp, err := c.rs.RunPodSandbox(c.Context(), &v1.RunPodSandboxRequest{Config: config})
	require.NoError(c, err)
	c.Cleanup(func() {
		_, err := c.rs.RemovePodSandbox(context.Background(), &v1.RemovePodSandboxRequest{PodSandboxId: resp.GetPodSandboxId()})
		assert.NoError(c, err)
	})
	return resp.GetPodSandboxId(), config
}

func (c critest) create(pod string, sandbox *v1.PodSandboxConfig, config *v1.ContainerConfig) (string, error) {
	config.Metadata = &v1.ContainerMetadata{Name: "main", Attempt: 2}
	if config.GetImage() == nil {
		config.Image = &v1.ImageSpec{Image: busybox}
	}
	if c.status(config.GetImage().GetImage()) == nil {
		c.pulled(config.GetImage().GetImage())
	}
	resp, err := c.rs.CreateContainer(c.Context(), &v1.CreateContainerRequest{PodSandboxId: pod, Config: config, SandboxConfig: sandbox})
	return resp.GetContainerId(), err
}

func (c critest) started(pod string, sandbox *v1.PodSandboxConfig, config *v1.ContainerConfig) string {
	c.Helper()
	id, err := c.create(pod, sandbox, config)
	require.NoError(c, err)
	_, err = c.rs.StartContainer(c.Context(), &v1.StartContainerRequest{ContainerId: id})
	require.NoError(c, err)
	return id
}

func (c critest) container(id string) *v1.ContainerStatus {
	resp, err := c.rs.ContainerStatus(c.Context(), &v1.ContainerStatusRequest{ContainerId: id})
	require.NoError(c, err)
	return resp.GetStatus()
}

func (c critest) exec(id string, command ...string) string {
	c.Helper()
	resp, err := c.rs.ExecSync(c.Context(), &v1.ExecSyncRequest{ContainerId: id, Cmd: command, Timeout: 60})
	require.NoError(c, err)
	assert.Empty(c, string(resp.GetStderr()))
	return string(resp.GetStdout())
}

// web is what the web server images run, at another port than 80.
func (c critest) web(port int32) *v1.ContainerConfig {
	self, err := os.Executable()
	require.NoError(c, err)
	return &v1.ContainerConfig{
		Image:   &v1.ImageSpec{Image: e2e + "httpd:2.4.39-4"},
		Command: []string{self, "-serve", fmt.Sprintf(":%d", port), "-as", "httpd"},
	}
}

func (c critest) page(host string, port int32) (text string) {
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	require.Eventually(c, func() bool {
		resp, err := client.Get(fmt.Sprintf("http://%s:%d", host, port))
		if err != nil {
			return false
		}
		defer func() { _ = resp.Body.Close() }()
		body, err := io.ReadAll(resp.Body)
		text = string(body)
		return err == nil && resp.StatusCode == http.StatusOK
	}, time.Minute, 10*time.Millisecond)
	return text
}

func freePort(t testing.TB) int32 {
	lis, err := net.Listen("tcp", ":0")
	require.NoError(t, err)
	defer func() { _ = lis.Close() }()
	return int32(lis.Addr().(*net.TCPAddr).Port)
}

// metrics asserts that there are the descriptors that critest wants, and returns how
// many labels each has.
func (c critest) metrics() map[string]int {
	resp, err := c.rs.ListMetricDescriptors(c.Context(), &v1.ListMetricDescriptorsRequest{})
	require.NoError(c, err)
	keys := map[string]int{}
	for _, d := range resp.GetDescriptors() {
		assert.NotEmpty(c, d.GetHelp(), d.GetName())
		assert.NotEmpty(c, d.GetLabelKeys(), d.GetName())
		keys[d.GetName()] = len(d.GetLabelKeys())
	}
	want, err := os.ReadFile(filepath.Join("testdata", "metrics"))
	require.NoError(c, err)
	for name := range strings.FieldsSeq(string(want)) {
		assert.Contains(c, keys, "container_"+name)
	}
	return keys
}
