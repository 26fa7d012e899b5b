package runtimetest

import (
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// image returns an image's status, or nil if the runtime does not have it.
func (c *CaseT) image(ref string) *v1.Image {
	r, err := c.is.ImageStatus(c.ctx, &v1.ImageStatusRequest{Image: &v1.ImageSpec{Image: ref}})
	c.ok(err, "status of image "+ref)
	return r.GetImage()
}

func (c *CaseT) pull(ref string) (string, error) {
	r, err := c.is.PullImage(c.ctx, &v1.PullImageRequest{Image: &v1.ImageSpec{Image: ref}})
	return r.GetImageRef(), err
}

// isRecent expects the time of a measurement, in nanoseconds, to be of the last minutes.
func (c *CaseT) isRecent(nanos int64, what string) {
	age := time.Since(time.Unix(0, nanos))
	c.check(age > -time.Minute && age < 5*time.Minute, "the measurement is %s old: %s is %d, want nanoseconds since 1970", age.Round(time.Second), what, nanos)
}

func imageCases() []testCase {
	return []testCase{
		{"an image that was pulled is there", "it would pull the image at each start", 0, func(c *CaseT) {
			img := c.image(c.s.image)
			if img == nil {
				c.fatal("image %s has no status", c.s.image)
			}
			c.check(img.GetId() != "", "it has no id")
			c.check(img.GetSize() > 0, "its size is 0; garbage collection would free nothing")
			c.check(len(img.GetRepoTags())+len(img.GetRepoDigests()) > 0, "it has no name")
			list, err := c.is.ListImages(c.ctx, &v1.ListImagesRequest{})
			c.ok(err, "list images")
			c.check(slices.ContainsFunc(list.GetImages(), func(i *v1.Image) bool { return i.GetId() == img.GetId() }), "it is not in the list")
		}},
		{"pulling an image again gives the same image", "containers of one image would differ", 0, func(c *CaseT) {
			one, err := c.pull(c.s.image)
			c.ok(err, "pull image")
			two, err := c.pull(c.s.image)
			c.ok(err, "pull image again")
			same(c, one, two, "image_ref")
		}},
		{"a pull gives the image's id", "the image that was pulled could not be found again", 0, func(c *CaseT) {
			ref, err := c.pull(c.s.image)
			c.ok(err, "pull image")
			if ref == "" {
				c.fatal("image_ref of the pull is empty")
			}
			img := c.image(ref)
			c.check(img != nil, "no image is known by the pulled image_ref %q", ref)
			same(c, c.image(c.s.image).GetId(), ref, "image_ref of the pull")
		}},
		{"an image is found by each of its names", "an image named in another way would be pulled again", 0, func(c *CaseT) {
			img := c.image(c.s.image)
			for _, name := range slices.Concat([]string{img.GetId()}, img.GetRepoTags(), img.GetRepoDigests()) {
				got := c.image(name)
				c.check(got != nil && got.GetId() == img.GetId(), "by name %s it is %v", name, got)
			}
		}},
		{"an image that is not there has no status, and no error", "it would take a missing image for a broken runtime", 0, func(c *CaseT) {
			c.check(c.image("example.invalid/no/such/image:1") == nil, "it has a status")
		}},
		{"a list can be asked for one image", "each query of one image would read all", 0, func(c *CaseT) {
			list, err := c.is.ListImages(c.ctx, &v1.ListImagesRequest{Filter: &v1.ImageFilter{Image: &v1.ImageSpec{Image: c.s.image}}})
			c.ok(err, "list images")
			same(c, 1, len(list.GetImages()), "images")
			list, err = c.is.ListImages(c.ctx, &v1.ListImagesRequest{Filter: &v1.ImageFilter{Image: &v1.ImageSpec{Image: "example.invalid/no/such/image:1"}}})
			c.ok(err, "list images that are not there")
			same(c, 0, len(list.GetImages()), "images that are not there")
		}},
		{"an invalid image name is refused", "a typo would be retried indefinitely", 0, func(c *CaseT) {
			_, err := c.pull("UPPER CASE !")
			c.rejected(err, "pull of a malformed name")
		}},
		{"removing an image that is not there is no error", "garbage collection would keep failing on removed objects", 0, func(c *CaseT) {
			_, err := c.is.RemoveImage(c.ctx, &v1.RemoveImageRequest{Image: &v1.ImageSpec{Image: "example.invalid/no/such/image:1"}})
			c.ok(err, "remove unknown image")
		}},
		{"a removed image is gone and can be pulled again", "garbage collection would free nothing", twoImages | alone, func(c *CaseT) {
			img := c.image(c.s.second)
			_, err := c.is.RemoveImage(c.ctx, &v1.RemoveImageRequest{Image: &v1.ImageSpec{Image: img.GetId()}})
			c.ok(err, "remove image")
			c.check(c.image(c.s.second) == nil, "it is still there")
			ref, err := c.pull(c.s.second)
			c.ok(err, "pull image again")
			same(c, img.GetId(), ref, "image_ref")
		}},
		{"a running container outlives its image", "removing an image would crash its containers", twoImages | alone, func(c *CaseT) {
			p := c.pod("p")
			id := p.start("c", longRunTime, func(cfg *v1.ContainerConfig) {
				cfg.Image = &v1.ImageSpec{Image: c.s.second, UserSpecifiedImage: c.s.second}
			})
			_, err := c.is.RemoveImage(c.ctx, &v1.RemoveImageRequest{Image: &v1.ImageSpec{Image: c.s.second}})
			if err == nil {
				c.state(id, running)
			}
			_, err = c.pull(c.s.second)
			c.ok(err, "pull image again")
		}},
		{"the image file system is measured", "disk pressure would go unnoticed", 0, func(c *CaseT) {
			r, err := c.is.ImageFsInfo(c.ctx, &v1.ImageFsInfoRequest{})
			c.ok(err, "image file system")
			c.check(len(r.GetImageFilesystems()) > 0, "there is none")
			for _, fs := range r.GetImageFilesystems() {
				c.isRecent(fs.GetTimestamp(), "timestamp")
				c.check(strings.HasPrefix(fs.GetFsId().GetMountpoint(), "/"), "mount point %q", fs.GetFsId().GetMountpoint())
				c.check(fs.GetUsedBytes() != nil, "used_bytes is missing")
				c.check(fs.GetInodesUsed() != nil, "inodes_used is missing")
			}
		}},
		{"streamed images are the listed images", "a big node could not be read", alone, func(c *CaseT) {
			c.streamsTheList("streamed images", func() (all []string) {
				list, err := c.is.ListImages(c.ctx, &v1.ListImagesRequest{})
				c.ok(err, "list images")
				for _, i := range list.GetImages() {
					all = append(all, i.GetId())
				}
				return all
			}, func() (got []string) {
				s, err := c.is.StreamImages(c.ctx, &v1.StreamImagesRequest{})
				drain(c, s, err, "StreamImages", func(r *v1.StreamImagesResponse) {
					c.hasItems(len(r.GetImages()), "StreamImages")
					for _, i := range r.GetImages() {
						got = append(got, i.GetId())
					}
				})
				return got
			})
		}},
	}
}

func statsCases() []testCase {
	return []testCase{
		{"a running container is measured", "eviction could not see who uses the memory", 0, func(c *CaseT) {
			p := c.pod("p")
			id := p.start("c", longRunTime, annotate(map[string]string{"sim.sublet.dev/memory": "1Mi", "sim.sublet.dev/cpu": "10m"}))
			var st *v1.ContainerStats
			c.until(20*time.Second, "the container is measured", func() bool {
				r, err := c.rs.ContainerStats(c.ctx, &v1.ContainerStatsRequest{ContainerId: id})
				c.ok(err, "stats")
				st = r.GetStats()
				return st.GetMemory().GetWorkingSetBytes().GetValue() > 0
			})
			same(c, id, st.GetAttributes().GetId(), "id")
			same(c, "c", st.GetAttributes().GetMetadata().GetName(), "name")
			c.isRecent(st.GetCpu().GetTimestamp(), "cpu.timestamp")
			c.isRecent(st.GetMemory().GetTimestamp(), "memory.timestamp")
			c.check(st.GetWritableLayer().GetUsedBytes() != nil, "writable_layer.used_bytes is missing from the measurement")
		}},
		{"processor time only grows", "usage would become negative", 0, func(c *CaseT) {
			id := c.pod("p").start("c", longRunTime, annotate(map[string]string{"sim.sublet.dev/cpu": "100m"}))
			read := func() (uint64, int64) {
				r, err := c.rs.ContainerStats(c.ctx, &v1.ContainerStatsRequest{ContainerId: id})
				c.ok(err, "stats")
				return r.GetStats().GetCpu().GetUsageCoreNanoSeconds().GetValue(), r.GetStats().GetCpu().GetTimestamp()
			}
			used, at := read()
			for range 3 {
				c.wait(200 * time.Millisecond)
				nextUsed, nextAt := read()
				c.check(nextUsed >= used && nextAt >= at, "from %d at %d to %d at %d", used, at, nextUsed, nextAt)
				used, at = nextUsed, nextAt
			}
		}},
		{"processor time is in nanoseconds", "usage would be wrong by orders of magnitude", 0, func(c *CaseT) {
			before := time.Now()
			id := c.pod("p").start("c", "while true; do true; done", annotate(map[string]string{"sim.sublet.dev/cpu": "500m"}))
			var used time.Duration
			c.until(30*time.Second, "100ms of processor time of a container that does nothing but compute, in usage_core_nano_seconds,", func() bool {
				r, err := c.rs.ContainerStats(c.ctx, &v1.ContainerStatsRequest{ContainerId: id})
				c.ok(err, "stats")
				used = time.Duration(r.GetStats().GetCpu().GetUsageCoreNanoSeconds().GetValue())
				return used >= 100*time.Millisecond
			})
			most := time.Since(before) * 1024 // on as many processors
			c.check(used < most, "usage_core_nano_seconds is %d, which is more than %s", used, most)
		}},
		{"measurements carry the container's labels", "usage could not be assigned to a pod", 0, func(c *CaseT) {
			p := c.pod("p")
			id := p.start("c", longRunTime)
			r, err := c.rs.ListContainerStats(c.ctx, &v1.ListContainerStatsRequest{Filter: &v1.ContainerStatsFilter{Id: id}})
			c.ok(err, "list stats")
			same(c, 1, len(r.GetStats()), "number of measurements of one container")
			for _, s := range r.GetStats() {
				same(c, p.cfg.GetMetadata().GetUid(), s.GetAttributes().GetLabels()["io.kubernetes.pod.uid"], "label io.kubernetes.pod.uid of the measurement")
			}
		}},
		{"measurements are found by pod and container", "usage would be put down to the wrong pod", 0, func(c *CaseT) {
			a, b := c.pod("a"), c.pod("b")
			want := []string{a.start("x", longRunTime), a.start("y", longRunTime)}
			b.start("x", longRunTime)
			list := func(f *v1.ContainerStatsFilter) (got []string) {
				r, err := c.rs.ListContainerStats(c.ctx, &v1.ListContainerStatsRequest{Filter: f})
				c.ok(err, "list stats")
				for _, s := range r.GetStats() {
					got = append(got, s.GetAttributes().GetId())
				}
				return got
			}
			set(c, want, list(&v1.ContainerStatsFilter{PodSandboxId: a.id}), "by pod")
			set(c, want[:1], list(&v1.ContainerStatsFilter{Id: want[0]}), "by container")
			set(c, want[1:], list(&v1.ContainerStatsFilter{LabelSelector: map[string]string{
				"io.kubernetes.pod.uid": a.cfg.GetMetadata().GetUid(), "io.kubernetes.container.name": "y",
			}}), "containers measured by label_selector")
		}},
		{"a container that is not there is not measured", "it would go on with figures of the dead", 0, func(c *CaseT) {
			_, err := c.rs.ContainerStats(c.ctx, &v1.ContainerStatsRequest{ContainerId: unknownID})
			c.rejected(err, "stats of an unknown container", codes.NotFound)
		}},
		{"a pod is measured", "eviction could not compare pods", 0, func(c *CaseT) {
			p := c.pod("p")
			c.pod("other")
			p.start("c", longRunTime)
			r, err := c.rs.PodSandboxStats(c.ctx, &v1.PodSandboxStatsRequest{PodSandboxId: p.id})
			c.implemented(err, "PodSandboxStats")
			same(c, p.id, r.GetStats().GetAttributes().GetId(), "id")
			same(c, p.cfg.GetMetadata().GetUid(), r.GetStats().GetAttributes().GetMetadata().GetUid(), "uid")
			list, err := c.rs.ListPodSandboxStats(c.ctx, &v1.ListPodSandboxStatsRequest{Filter: &v1.PodSandboxStatsFilter{Id: p.id}})
			c.ok(err, "list pod stats")
			same(c, 1, len(list.GetStats()), "pods in the list")
			_, err = c.rs.PodSandboxStats(c.ctx, &v1.PodSandboxStatsRequest{PodSandboxId: unknownID})
			c.rejected(err, "PodSandboxStats of an unknown pod")
		}},
		{"measuring while pods come and go is no error", "one pod's end would leave the whole node unmeasured", 0, func(c *CaseT) {
			p := c.pod("p")
			c.meanwhile(func() {
				for i := range uint32(4) {
					_ = c.remove(p.start("c", longRunTime, withAttempt(i)))
				}
			}, func() {
				_, err := c.rs.ListContainerStats(c.ctx, &v1.ListContainerStatsRequest{})
				c.check(err == nil, "list stats: %v", err)
				_, err = c.rs.ListPodSandboxStats(c.ctx, &v1.ListPodSandboxStatsRequest{})
				c.check(err == nil || status.Code(err) == codes.Unimplemented, "list pod stats: %v", err)
			})
		}},
		{"resources can be changed while it runs", "pods could not be resized in place", 0, func(c *CaseT) {
			id := c.pod("p").start("c", longRunTime, func(cfg *v1.ContainerConfig) { cfg.Linux.Resources.MemoryLimitInBytes = 64 << 20 })
			_, err := c.rs.UpdateContainerResources(c.ctx, &v1.UpdateContainerResourcesRequest{
				ContainerId: id, Linux: &v1.LinuxContainerResources{MemoryLimitInBytes: 128 << 20},
			})
			c.ok(err, "update resources")
			c.state(id, running)
			if r := c.status(id).GetResources(); r != nil {
				same(c, 128<<20, r.GetLinux().GetMemoryLimitInBytes(), "memory limit in the status")
			}
		}},
		{"a container reports its resources", "status.containerStatuses.resources would be empty, and each resize repeated", 0, func(c *CaseT) {
			id := c.pod("p").start("c", longRunTime, limited)
			r := c.status(id).GetResources().GetLinux()
			same(c, 64<<20, r.GetMemoryLimitInBytes(), "memory limit in the status")
			same(c, 100_000, r.GetCpuPeriod(), "cpu_period in the status")
			same(c, 50_000, r.GetCpuQuota(), "cpu_quota in the status")
			same(c, 512, r.GetCpuShares(), "cpu_shares in the status")
		}},
		{"resources of a container that is not there cannot be changed", "a resize would seem to be done", 0, func(c *CaseT) {
			_, err := c.rs.UpdateContainerResources(c.ctx, &v1.UpdateContainerResourcesRequest{
				ContainerId: unknownID, Linux: &v1.LinuxContainerResources{MemoryLimitInBytes: 64 << 20},
			})
			c.rejected(err, "update of an unknown container", codes.NotFound)
		}},
	}
}
