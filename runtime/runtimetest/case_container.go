package runtimetest

import (
	"maps"
	"path/filepath"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// unknownID is an id of no sandbox or container.
const unknownID = "0000000000000000000000000000000000000000000000000000000000000000"

// The states of a container.
const (
	created = v1.ContainerState_CONTAINER_CREATED
	running = v1.ContainerState_CONTAINER_RUNNING
	exited  = v1.ContainerState_CONTAINER_EXITED
)

// isNow expects a time in nanoseconds that is not before a call nor in the future.
// Clocks of runtimes that store coarse times may differ by a second.
func (c *CaseT) isNow(before time.Time, nanos int64, what string) {
	at := time.Unix(0, nanos)
	c.check(!at.Before(before.Add(-time.Second)) && !at.After(time.Now().Add(time.Second)),
		"%s is %d, which is %s; want nanoseconds since 1970, about %s", what, nanos, at.UTC().Format(time.RFC3339), before.UTC().Format(time.RFC3339))
}

// state expects a container to be in a state, in its status and in the list.
func (c *CaseT) state(id string, want v1.ContainerState) {
	same(c, want, c.status(id).GetState(), "state in the status")
	for _, item := range c.containers(&v1.ContainerFilter{Id: id}) {
		same(c, want, item.GetState(), "state in the list")
	}
}

func createCases() []testCase {
	return []testCase{
		{"a container that was made does not run yet", "hooks that must come before the start would come too late", 0, func(c *CaseT) {
			before := time.Now()
			id := c.pod("p").create("c", sh(longRunTime))
			c.state(id, created)
			c.isNow(before, c.status(id).GetCreatedAt(), "created_at of the container")
			same(c, 0, c.status(id).GetStartedAt(), "start time")
			same(c, 0, c.status(id).GetFinishedAt(), "end time")
		}},
		{"a container is reported with its name and attempt", "restart counts would start at 0 after each restart of the agent", 0, func(c *CaseT) {
			p := c.pod("p")
			id := p.create("c", sh(longRunTime), withAttempt(4))
			st := c.status(id)
			same(c, "c", st.GetMetadata().GetName(), "name")
			same(c, 4, st.GetMetadata().GetAttempt(), "attempt")
			item := c.listed(id)
			same(c, p.id, item.GetPodSandboxId(), "pod of the container")
			same(c, 4, item.GetMetadata().GetAttempt(), "attempt in the list")
		}},
		{"a container keeps its labels and annotations", "it keeps the spec's hash in an annotation; every container would be restarted", 0, func(c *CaseT) {
			p := c.pod("p")
			cfg := p.containerConfig("c", sh(longRunTime), annotate(map[string]string{"io.kubernetes.container.hash": "abc", "sublet.dev/odd": "{\"a\":1}"}))
			id, err := p.createConfig(cfg)
			c.ok(err, "create container")
			st, item := c.status(id), c.listed(id)
			c.check(maps.Equal(cfg.GetLabels(), st.GetLabels()), "labels in the status: %v", st.GetLabels())
			c.check(maps.Equal(cfg.GetAnnotations(), st.GetAnnotations()), "annotations in the status: %v", st.GetAnnotations())
			c.check(maps.Equal(cfg.GetLabels(), item.GetLabels()), "labels in the list: %v", item.GetLabels())
			c.check(maps.Equal(cfg.GetAnnotations(), item.GetAnnotations()), "annotations in the list: %v", item.GetAnnotations())
		}},
		{"one name and attempt is one container", "a retried create would make two containers of one", 0, func(c *CaseT) {
			p := c.pod("p")
			cfg := p.containerConfig("c", sh(longRunTime))
			_, err := p.createConfig(cfg)
			c.ok(err, "create container")
			_, err = p.createConfig(cfg)
			c.rejected(err, "a second container of the same name and attempt")
			same(c, 1, len(c.containers(&v1.ContainerFilter{PodSandboxId: p.id})), "containers of the pod")
		}},
		{"a removed container's name is free", "a container that failed to start once could never start", 0, func(c *CaseT) {
			p := c.pod("p")
			id := p.create("c", sh(longRunTime))
			c.ok(c.remove(id), "remove container")
			p.create("c", sh(longRunTime))
		}},
		{"one container name in two pods is two containers", "pods of one template could not run side by side", 0, func(c *CaseT) {
			a, b := c.pod("a"), c.pod("b")
			c.check(a.create("c", sh(longRunTime)) != b.create("c", sh(longRunTime)), "both have one id")
		}},
		{"a refused create leaves nothing behind", "a pod with a bad image would never start, even after the image is there", 0, func(c *CaseT) {
			p := c.pod("p")
			cfg := p.containerConfig("c", sh(longRunTime))
			good := cfg.Image
			cfg.Image = &v1.ImageSpec{Image: "example.invalid/no/such/image:1"}
			_, err := p.createConfig(cfg)
			c.rejected(err, "a container of an image that is not there")
			same(c, 0, len(c.containers(&v1.ContainerFilter{PodSandboxId: p.id})), "containers of the pod")
			cfg.Image = good
			_, err = p.createConfig(cfg)
			c.ok(err, "create container with the right image")
		}},
		{"a container names its image by the image's id", "image garbage collection would remove images in use", 0, func(c *CaseT) {
			st := c.status(c.pod("p").create("c", sh(longRunTime)))
			img, err := c.is.ImageStatus(c.ctx, &v1.ImageStatusRequest{Image: &v1.ImageSpec{Image: st.GetImageRef()}})
			c.ok(err, "image status")
			c.check(img.GetImage() != nil, "no image is known by the container's image_ref %q", st.GetImageRef())
			want, err := c.is.ImageStatus(c.ctx, &v1.ImageStatusRequest{Image: &v1.ImageSpec{Image: c.s.image}})
			c.ok(err, "image status")
			same(c, want.GetImage().GetId(), img.GetImage().GetId(), "image behind image_ref")
		}},
		{"a container carries its image's id", "image ids in pod statuses would differ from those on the node", 0, func(c *CaseT) {
			id := c.pod("p").create("c", sh(longRunTime))
			want, err := c.is.ImageStatus(c.ctx, &v1.ImageStatusRequest{Image: &v1.ImageSpec{Image: c.s.image}})
			c.ok(err, "image status")
			same(c, want.GetImage().GetId(), c.status(id).GetImageId(), "image_id in the status")
			same(c, want.GetImage().GetId(), c.listed(id).GetImageId(), "image_id in the list")
		}},
		{"a container reports the name of its image", "pod statuses would show ids, or nothing, instead of image names", 0, func(c *CaseT) {
			p := c.pod("p")
			img := c.image(c.s.image)
			cfg := p.containerConfig("c", sh(longRunTime))
			cfg.Image.Image = img.GetId() // as kubelets do, with the name beside it
			id, err := p.createConfig(cfg)
			c.ok(err, "create container by the id of its image")
			name := c.status(id).GetImage().GetImage()
			if name == "" || name == img.GetId() {
				c.fatal("image.image in the status is %q, want a name of the image: %v", name, slices.Concat(img.GetRepoTags(), img.GetRepoDigests()))
			}
			same(c, img.GetId(), c.image(name).GetId(), "id of the image that image.image in the status names")
			for _, item := range c.containers(&v1.ContainerFilter{Id: id}) {
				c.check(item.GetImage().GetImage() != "", "image.image in the list is empty; kubelets ignore such a container")
			}
		}},
		{"a container reports its user", "status.containerStatuses.user would be empty", 0, func(c *CaseT) {
			st := c.status(c.pod("p").start("c", longRunTime))
			c.check(st.GetUser().GetLinux() != nil, "user.linux is missing from the status of a running container")
		}},
		{"a container reports its log path", "kubectl logs would find nothing", 0, func(c *CaseT) {
			p := c.pod("p")
			same(c, filepath.Join(p.cfg.GetLogDirectory(), "c/0.log"), c.status(p.create("c", sh(longRunTime))).GetLogPath(), "log path")
		}},
		{"a container reports its mounts", "termination messages are found by the mount; they would be lost", 0, func(c *CaseT) {
			p := c.pod("p")
			dir := c.s.logs
			id := p.create("c", sh(longRunTime), func(cfg *v1.ContainerConfig) {
				cfg.Mounts = []*v1.Mount{{ContainerPath: dir, HostPath: dir}}
			})
			for _, m := range c.status(id).GetMounts() {
				if m.GetContainerPath() == dir && m.GetHostPath() == dir {
					return
				}
			}
			c.Errorf("the mount of %s is not in the status", dir)
		}},
		{"a container that was never started can be removed", "a pod that is deleted early would leave it behind", 0, func(c *CaseT) {
			p := c.pod("p")
			id := p.create("c", sh(longRunTime))
			c.ok(c.remove(id), "remove created container")
			same(c, 0, len(c.containers(&v1.ContainerFilter{Id: id})), "containers of that id")
		}},
	}
}

func startCases() []testCase {
	return []testCase{
		{"a started container is reported as running", "it would start the container again and again", 0, func(c *CaseT) {
			before := time.Now()
			id := c.pod("p").start("c", longRunTime)
			c.state(id, running)
			c.isNow(before, c.status(id).GetStartedAt(), "started_at of the container")
			same(c, 0, c.status(id).GetFinishedAt(), "end time of a running container")
		}},
		{"a running container cannot be started again", "it could not distinguish a lost answer from a second process", 0, func(c *CaseT) {
			id := c.pod("p").start("c", longRunTime)
			c.rejected(c.start(id), "second start")
			c.state(id, running)
		}},
		{"an ended container cannot be started again", "exit codes would be overwritten; a restart is a new container", 0, func(c *CaseT) {
			id := c.pod("p").start("c", "exit 3")
			c.exited(id)
			c.rejected(c.start(id), "start of an ended container")
			same(c, 3, c.status(id).GetExitCode(), "exit code")
		}},
		{"the next attempt starts beside the dead one", "containers could not be restarted", 0, func(c *CaseT) {
			p := c.pod("p")
			first := p.start("c", "exit 3")
			c.exited(first)
			second := p.start("c", longRunTime, withAttempt(1))
			c.state(second, running)
			same(c, 3, c.status(first).GetExitCode(), "exit code of the first attempt")
			same(c, 2, len(c.containers(&v1.ContainerFilter{PodSandboxId: p.id})), "containers of the pod")
		}},
		{"a command that is not there fails the start", "a typo would look like a crash of the application", 0, func(c *CaseT) {
			p := c.pod("p")
			id := p.create("c", []string{"/no/such/program"}, annotate(map[string]string{"sim.sublet.dev/start-error": "no such program"}))
			c.rejected(c.start(id), "start of a program that is not there")
			c.check(c.status(id).GetState() != running, "the container is reported as running")
			c.ok(c.remove(id), "remove the container")
			p.start("c", longRunTime)
		}},
		{"a container starts with arguments", "spec.args would be ignored", 0, func(c *CaseT) {
			p := c.pod("p")
			id := p.create("c", []string{"echo", "one"}, func(cfg *v1.ContainerConfig) { cfg.Args = []string{"two", "three"} })
			c.ok(c.start(id), "start container")
			c.exited(id)
			p.logged("c/0.log", "stdout F one two three")
		}},
		{"a container has its environment", "applications would lack their settings", processes, func(c *CaseT) {
			p := c.pod("p")
			id := p.start("c", `echo "$A|$B"`, func(cfg *v1.ContainerConfig) {
				cfg.Envs = []*v1.KeyValue{{Key: "A", Value: []byte("1 2")}, {Key: "B", Value: []byte("x=\"y\"")}}
			})
			c.exited(id)
			p.logged("c/0.log", `stdout F 1 2|x="y"`)
		}},
		{"a container starts in its working directory", "relative paths of applications would break", processes, func(c *CaseT) {
			p := c.pod("p")
			id := p.start("c", "pwd", func(cfg *v1.ContainerConfig) { cfg.WorkingDir = "/tmp" })
			c.exited(id)
			p.logged("c/0.log", "stdout F /tmp")
		}},
		{"containers of a pod start side by side", "a pod of several containers would come up one by one", 0, func(c *CaseT) {
			p := c.pod("p")
			var all []string
			for _, n := range []string{"a", "b", "d"} {
				all = append(all, p.start(n, longRunTime))
			}
			for _, id := range all {
				c.state(id, running)
			}
		}},
		{"a container that was not made cannot be started", "it would take a lost container for a running one", 0, func(c *CaseT) {
			c.rejected(c.start(unknownID), "start of an unknown container", codes.NotFound)
		}},
	}
}

func endCases() []testCase {
	return []testCase{
		{"a container that exits with 0 is reported as Completed", "jobs would never succeed", 0, func(c *CaseT) {
			id := c.pod("p").start("c", "sleep 0.2; exit 0")
			st := c.exited(id)
			same(c, 0, st.GetExitCode(), "exit code")
			same(c, "Completed", st.GetReason(), "reason")
			c.check(st.GetStartedAt() > 0 && st.GetStartedAt() <= st.GetFinishedAt(), "started %d, finished %d", st.GetStartedAt(), st.GetFinishedAt())
			c.check(st.GetFinishedAt() <= time.Now().Add(time.Second).UnixNano(), "finished in the future")
			c.state(id, exited)
		}},
		{"a failed container is reported with its exit code", "restartPolicy OnFailure would not know failure from success", 0, func(c *CaseT) {
			st := c.exited(c.pod("p").start("c", "exit 42"))
			same(c, 42, st.GetExitCode(), "exit code")
			same(c, "Error", st.GetReason(), "reason")
		}},
		{"a container that exits at once is reported like any other", "a crash loop would look like a hang", 0, func(c *CaseT) {
			p := c.pod("p")
			for i := range uint32(5) {
				st := c.exited(p.start("c", "exit 1", withAttempt(i)))
				same(c, 1, st.GetExitCode(), "exit code")
				c.check(st.GetFinishedAt() >= st.GetStartedAt() && st.GetStartedAt() > 0, "times %d to %d", st.GetStartedAt(), st.GetFinishedAt())
			}
		}},
		{"the status of an exited container does not change", "a crash would be counted twice, or another exit code shown each time", 0, func(c *CaseT) {
			id := c.pod("p").start("c", "exit 9")
			was := c.exited(id)
			c.wait(500 * time.Millisecond)
			now := c.status(id)
			same(c, was.GetExitCode(), now.GetExitCode(), "exit code")
			same(c, was.GetFinishedAt(), now.GetFinishedAt(), "end time")
			same(c, was.GetStartedAt(), now.GetStartedAt(), "start time")
		}},
		{"one container's end leaves the pod and the others alone", "a sidecar's crash would take the whole pod down", 0, func(c *CaseT) {
			p := c.pod("p")
			other := p.start("other", longRunTime)
			c.exited(p.start("c", "exit 1"))
			same(c, ready, p.status().GetState(), "pod")
			c.state(other, running)
		}},
		{"a container over its memory limit is reported as OOMKilled", "the reason of its death would be unknown; limits would seem to have no effect", processes | limits, func(c *CaseT) {
			p := c.pod("p")
			id := p.start("c", "exec dd if=/dev/zero of=/dev/null bs=64M count=1", func(cfg *v1.ContainerConfig) {
				cfg.Linux.Resources.MemoryLimitInBytes = 16 << 20
				cfg.Linux.Resources.MemorySwapLimitInBytes = 16 << 20
			}, annotate(map[string]string{"sim.sublet.dev/oom-after": "300ms"}))
			st := c.exited(id)
			same(c, "OOMKilled", st.GetReason(), "reason")
			same(c, 137, st.GetExitCode(), "exit code")
		}},
		{"an exited container can be removed", "dead containers would fill the node", 0, func(c *CaseT) {
			id := c.pod("p").start("c", "exit 0")
			c.exited(id)
			c.ok(c.remove(id), "remove container")
			_, err := c.rs.ContainerStatus(c.ctx, &v1.ContainerStatusRequest{ContainerId: id})
			c.rejected(err, "status of a removed container", codes.NotFound)
			same(c, 0, len(c.containers(&v1.ContainerFilter{Id: id})), "containers of that id")
		}},
	}
}
