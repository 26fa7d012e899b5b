package runtimetest

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func refusalCases() []testCase {
	return []testCase{
		{"the runtime reports its name and versions", "it would not start at all", 0, func(c *CaseT) {
			v, err := c.rs.Version(c.ctx, &v1.VersionRequest{Version: "0.1.0"})
			c.ok(err, "version")
			c.check(v.GetRuntimeName() != "" && v.GetRuntimeVersion() != "", "name %q, version %q", v.GetRuntimeName(), v.GetRuntimeVersion())
			major, _, _ := strings.Cut(strings.TrimPrefix(v.GetRuntimeApiVersion(), "v"), ".")
			c.check(major == "1", "runtime_api_version is %s, want v1 or a version 1.x", shown(v.GetRuntimeApiVersion()))
			same(c, "0.1.0", v.GetVersion(), "version, which kubelets compare with their own,")
		}},
		{"the runtime reports that it is ready", "the node would never be ready", 0, func(c *CaseT) {
			r, err := c.rs.Status(c.ctx, &v1.StatusRequest{})
			c.ok(err, "status")
			for _, want := range []string{"RuntimeReady", "NetworkReady"} {
				i := slices.IndexFunc(r.GetStatus().GetConditions(), func(x *v1.RuntimeCondition) bool { return x.GetType() == want })
				if i < 0 {
					c.Errorf("there is no condition %s", want)
					continue
				}
				cond := r.GetStatus().GetConditions()[i]
				c.check(cond.GetStatus(), "%s is false: %s %s", want, cond.GetReason(), cond.GetMessage())
			}
		}},
		{"the runtime reports its cgroup driver", "its limits and the kubelet's would fight in two trees", 0, func(c *CaseT) {
			r, err := c.rs.RuntimeConfig(c.ctx, &v1.RuntimeConfigRequest{})
			c.implemented(err, "RuntimeConfig")
			if r.GetLinux() == nil {
				c.fatal("linux.cgroup_driver is missing from RuntimeConfig")
			}
			driver := r.GetLinux().GetCgroupDriver()
			c.check(v1.CgroupDriver_name[int32(driver)] != "", "linux.cgroup_driver of RuntimeConfig is %d", driver)
		}},
		{"a pod without a name is refused and breaks nothing", "one bad manifest would take the runtime down", 0, func(c *CaseT) {
			for what, req := range map[string]*v1.RunPodSandboxRequest{
				"no config":   {},
				"no metadata": {Config: &v1.PodSandboxConfig{}},
			} {
				_, err := c.rs.RunPodSandbox(c.ctx, req)
				c.rejected(err, what)
			}
			c.pod("p")
		}},
		{"a container without a name or image is refused and breaks nothing", "one bad manifest would take the runtime down", 0, func(c *CaseT) {
			p := c.pod("p")
			for what, edit := range map[string]containerEdit{
				"no metadata": func(cfg *v1.ContainerConfig) { cfg.Metadata = nil },
				"no image":    func(cfg *v1.ContainerConfig) { cfg.Image = nil },
			} {
				_, err := p.createConfig(p.containerConfig("c", sh(longRunTime), edit))
				c.rejected(err, what)
			}
			p.start("c", longRunTime)
		}},
		{"an unknown runtime class is refused", "a pod that asks for a sandboxed runtime would run without it", 0, func(c *CaseT) {
			_, err := c.rs.RunPodSandbox(c.ctx, &v1.RunPodSandboxRequest{Config: c.podConfig("p"), RuntimeHandler: "no-such-handler"})
			c.rejected(err, "unknown runtime handler")
		}},
		{"unknown ids are NotFound", "it could not distinguish a removed object from a broken runtime", 0, func(c *CaseT) {
			_, err := c.rs.PodSandboxStatus(c.ctx, &v1.PodSandboxStatusRequest{PodSandboxId: unknownID})
			c.rejected(err, "status of an unknown pod", codes.NotFound)
			_, err = c.rs.ContainerStatus(c.ctx, &v1.ContainerStatusRequest{ContainerId: unknownID})
			c.rejected(err, "status of an unknown container", codes.NotFound)
		}},
		{"a container cannot be made in a pod that is not there", "containers would be made nowhere", 0, func(c *CaseT) {
			p := &pod{c, unknownID, c.podConfig("p")}
			_, err := p.createConfig(p.containerConfig("c", sh(longRunTime)))
			c.rejected(err, "create in an unknown pod")
		}},
	}
}

// cutOff makes a call with several short deadlines, so that it is cancelled at different
// points, and calls mend after each. prepare returns the call: what it needs is made before,
// without a deadline.
func (c *CaseT) cutOff(prepare func(int) func(context.Context) error, mend func(int)) {
	for i, d := range []time.Duration{time.Millisecond, 5 * time.Millisecond, 25 * time.Millisecond, 60 * time.Millisecond} {
		call := prepare(i)
		ctx, cancel := context.WithTimeout(c.ctx, d)
		_ = call(ctx) // whether it was in time does not matter
		cancel()
		mend(i)
	}
}

// retried expects a call to succeed in the time that is allowed. It may be refused at first because
// the call that was given up still runs.
func (c *CaseT) retried(what string, call func() error) {
	var last error
	within := c.allow(20*time.Second + c.s.reserve)
	for deadline := time.Now().Add(within); time.Now().Before(deadline); {
		if last = call(); last == nil {
			return
		}
		c.wait(100 * time.Millisecond)
	}
	c.fatal("%s: still refused after %s: %v", what, within, last)
}

// adopt returns the pod of a configuration: the one of a cancelled call, or a new one.
func (c *CaseT) adopt(cfg *v1.PodSandboxConfig) *pod {
	var found *pod
	c.retried("run or find the pod", func() error {
		for _, s := range c.pods(&v1.PodSandboxFilter{LabelSelector: cfg.Labels}) {
			found = &pod{c, s.GetId(), cfg}
			if s.GetState() == ready {
				return nil
			}
			c.ok(found.remove(), "remove half-made pod")
		}
		var err error
		found, err = c.runConfig(cfg)
		return err
	})
	return found
}

func cutCases() []testCase {
	return []testCase{
		{"a pod whose making was given up can be made or found", "the pod would fail indefinitely with \"name is reserved\"", 0, func(c *CaseT) {
			name := func(i int) string { return fmt.Sprintf("p%d", i) }
			c.cutOff(func(i int) func(context.Context) error {
				req := &v1.RunPodSandboxRequest{Config: c.podConfig(name(i))}
				return func(ctx context.Context) error { _, err := c.rs.RunPodSandbox(ctx, req); return err }
			}, func(i int) {
				p := c.adopt(c.podConfig(name(i)))
				same(c, ready, p.status().GetState(), "state")
				p.start("c", longRunTime)
			})
		}},
		{"a container whose making was given up can be made or found", "the container would fail indefinitely with \"name is reserved\"", 0, func(c *CaseT) {
			p := c.pod("p")
			name := func(i int) string { return fmt.Sprintf("c%d", i) }
			c.cutOff(func(i int) func(context.Context) error {
				req := &v1.CreateContainerRequest{PodSandboxId: p.id, Config: p.containerConfig(name(i), sh(longRunTime)), SandboxConfig: p.cfg}
				return func(ctx context.Context) error { _, err := c.rs.CreateContainer(ctx, req); return err }
			}, func(i int) {
				c.retried("create or find the container", func() error {
					for _, x := range c.containers(&v1.ContainerFilter{PodSandboxId: p.id}) {
						if x.GetMetadata().GetName() == name(i) {
							return nil
						}
					}
					_, err := p.createConfig(p.containerConfig(name(i), sh(longRunTime)))
					return err
				})
			})
		}},
		{"a start that was given up leaves a definite state", "it would wait indefinitely for a container that is neither running nor dead", 0, func(c *CaseT) {
			p := c.pod("p")
			made := map[int]string{}
			c.cutOff(func(i int) func(context.Context) error {
				made[i] = p.create("c", sh(longRunTime), withAttempt(uint32(i)))
				req := &v1.StartContainerRequest{ContainerId: made[i]}
				return func(ctx context.Context) error { _, err := c.rs.StartContainer(ctx, req); return err }
			}, func(i int) {
				c.until(20*time.Second, "the container is made, running or ended, and can be removed", func() bool {
					if c.status(made[i]).GetState() == v1.ContainerState_CONTAINER_UNKNOWN {
						return false
					}
					return c.remove(made[i]) == nil
				})
			})
		}},
		{"a pod's stop that was given up can be made again", "a terminating pod would hang", 0, func(c *CaseT) {
			c.cutOff(func(i int) func(context.Context) error {
				p := c.pod(fmt.Sprintf("p%d", i))
				p.start("c", ignoresTERM)
				req := &v1.StopPodSandboxRequest{PodSandboxId: p.id}
				return func(ctx context.Context) error { _, err := c.rs.StopPodSandbox(ctx, req); return err }
			}, func(i int) {
				for _, s := range c.pods(nil) {
					p := &pod{c, s.GetId(), nil}
					c.retried("stop pod again", p.stop)
					c.retried("remove pod", p.remove)
				}
			})
		}},
		{"a removal that was given up can be made again", "dead pods would stay", 0, func(c *CaseT) {
			c.cutOff(func(i int) func(context.Context) error {
				p := c.pod(fmt.Sprintf("p%d", i))
				p.start("c", ignoresTERM)
				req := &v1.RemovePodSandboxRequest{PodSandboxId: p.id}
				return func(ctx context.Context) error { _, err := c.rs.RemovePodSandbox(ctx, req); return err }
			}, func(int) {
				for _, s := range c.pods(nil) {
					c.retried("remove pod again", (&pod{c, s.GetId(), nil}).remove)
				}
				c.until(10*time.Second, "no pod is left", func() bool { return len(c.pods(nil)) == 0 })
			})
		}},
		{"a container's removal that was given up can be made again", "dead containers would stay", 0, func(c *CaseT) {
			p := c.pod("p")
			made := map[int]string{}
			c.cutOff(func(i int) func(context.Context) error {
				made[i] = p.start("c", ignoresTERM, withAttempt(uint32(i)))
				req := &v1.RemoveContainerRequest{ContainerId: made[i]}
				return func(ctx context.Context) error { _, err := c.rs.RemoveContainer(ctx, req); return err }
			}, func(i int) { c.retried("remove container again", func() error { return c.remove(made[i]) }) })
		}},
		{"a command that was given up does not hold up the container's end", "a hung probe would block the pod's deletion", 0, func(c *CaseT) {
			p := c.pod("p")
			id := p.up("c", "trap 'exit 0' TERM")
			c.cutOff(func(int) func(context.Context) error {
				req := &v1.ExecSyncRequest{ContainerId: id, Cmd: []string{"sleep", "1000"}}
				return func(ctx context.Context) error { _, err := c.rs.ExecSync(ctx, req); return err }
			}, func(int) {})
			duration := timed(func() { c.ok(c.stop(id, stopGrace), "stop container") })
			c.check(duration < c.allow(30*time.Second), "the stop took %s", duration)
		}},
		{"a pull that was given up can be made again", "one slow registry would spoil an image for good", 0, func(c *CaseT) {
			c.cutOff(func(int) func(context.Context) error {
				req := &v1.PullImageRequest{Image: &v1.ImageSpec{Image: c.s.image}}
				return func(ctx context.Context) error { _, err := c.is.PullImage(ctx, req); return err }
			}, func(int) {
				_, err := c.pull(c.s.image)
				c.ok(err, "pull image again")
			})
		}},
	}
}

// race makes n concurrent calls and returns how many succeeded.
func race(n int, call func(int) error) int {
	var won atomic.Int32
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			if call(i) == nil {
				won.Add(1)
			}
		})
	}
	wg.Wait()
	return int(won.Load())
}

func raceCases() []testCase {
	return []testCase{
		{"of many calls for one pod one wins", "a retried call would make two pods of one", 0, func(c *CaseT) {
			cfg := c.podConfig("p")
			won := race(6, func(int) error { _, err := c.runConfig(cfg); return err })
			same(c, 1, won, "calls that won")
			same(c, 1, len(c.pods(nil)), "pods")
		}},
		{"of many calls for one container one wins", "a retried call would make two containers of one", 0, func(c *CaseT) {
			p := c.pod("p")
			cfg := p.containerConfig("c", sh(longRunTime))
			won := race(6, func(int) error { _, err := p.createConfig(cfg); return err })
			same(c, 1, won, "calls that won")
			same(c, 1, len(c.containers(&v1.ContainerFilter{PodSandboxId: p.id})), "containers")
		}},
		{"of many starts of one container one wins", "the application would run twice", 0, func(c *CaseT) {
			p := c.pod("p")
			id := p.create("c", sh(longRunTime))
			same(c, 1, race(6, func(int) error { return c.start(id) }), "starts that won")
			c.state(id, running)
		}},
		{"many stops of one container all return", "waiting calls would hang", 0, func(c *CaseT) {
			p := c.pod("p")
			id := p.up("c", "trap 'exit 0' TERM")
			same(c, 6, race(6, func(int) error { return c.stop(id, stopGrace) }), "stops that returned well")
			c.state(id, exited)
		}},
		{"a pod can be stopped while its container starts", "a pod deleted while it starts would leave a running container", 0, func(c *CaseT) {
			for i := range 4 {
				p := c.pod(fmt.Sprintf("p%d", i))
				id := p.create("c", sh(ignoresTERM))
				_ = race(2, func(n int) error {
					if n == 0 {
						return c.start(id)
					}
					c.wait(time.Duration(i) * 10 * time.Millisecond)
					c.retried("stop pod", p.stop)
					return nil
				})
				c.until(10*time.Second, "no container runs in the stopped pod", func() bool {
					return len(c.containers(&v1.ContainerFilter{PodSandboxId: p.id, State: inState(running)})) == 0
				})
			}
		}},
		{"a pod can be removed by many at once", "the kubelet and its garbage collection would block each other", 0, func(c *CaseT) {
			p := c.pod("p")
			p.start("c", longRunTime)
			race(4, func(int) error { return p.remove() })
			c.retried("remove pod", p.remove)
			p.requireRemoved()
		}},
		{"lists are complete while pods come and go", "pods missing from one list would be taken for dead", 0, func(c *CaseT) {
			stay := c.pod("stay")
			id := stay.start("c", longRunTime)
			c.meanwhile(func() {
				for i := range 4 {
					p := c.pod(fmt.Sprintf("churn%d", i))
					p.start("c", longRunTime)
					c.ok(p.remove(), "remove pod")
				}
			}, func() {
				c.check(slices.Contains(ids(c.containers(nil)), id), "the lasting container is missing from a list")
				c.check(slices.ContainsFunc(c.pods(nil), func(p *v1.PodSandbox) bool { return p.GetId() == stay.id }), "the lasting pod is missing from a list")
			})
		}},
		{"many pods start at once", "a rebooted node would come up one pod at a time", 0, func(c *CaseT) {
			won := race(8, func(i int) error {
				p, err := c.runConfig(c.podConfig(fmt.Sprintf("p%d", i)))
				if err != nil {
					c.Errorf("run pod: %v", err)
					return err
				}
				id, err := p.createConfig(p.containerConfig("c", sh(longRunTime)))
				if err == nil {
					err = c.start(id)
				}
				if err != nil {
					c.Errorf("start container: %v", err)
				}
				return err
			})
			same(c, 8, won, "pods that started")
			addresses := map[string]bool{}
			for _, s := range c.pods(nil) {
				addresses[s.GetId()] = true
			}
			same(c, 8, len(addresses), "different ids")
		}},
	}
}

func restartCases() []testCase {
	return []testCase{
		{"containers outlive a restart of the runtime", "an upgrade of the runtime would restart every pod on the node", aRestart | alone, func(c *CaseT) {
			p := c.pod("p")
			id := p.start("c", longRunTime)
			was := c.status(id)
			c.restart()
			same(c, running, c.status(id).GetState(), "state")
			same(c, was.GetStartedAt(), c.status(id).GetStartedAt(), "start time")
			same(c, ready, p.status().GetState(), "pod")
		}},
		{"exit codes outlive a restart of the runtime", "finished jobs would run again", aRestart | alone, func(c *CaseT) {
			p := c.pod("p")
			id := p.start("c", "exit 5")
			c.exited(id)
			c.restart()
			same(c, exited, c.status(id).GetState(), "state")
			same(c, 5, c.status(id).GetExitCode(), "exit code")
		}},
		{"names stay taken over a restart of the runtime", "pods would be made twice after an upgrade", aRestart | alone, func(c *CaseT) {
			p := c.pod("p")
			c.restart()
			_, err := c.runConfig(p.cfg)
			c.rejected(err, "a second pod of the same name")
		}},
		{"pods can be used after a restart of the runtime", "probes and deletions would fail after an upgrade", aRestart | alone, func(c *CaseT) {
			p := c.pod("p")
			id := p.up("c", "trap 'exit 0' TERM")
			c.restart()
			r, err := c.exec(id, execTimeout, "echo", "hi")
			c.ok(err, "exec")
			same(c, "hi\n", string(r.GetStdout()), "output")
			c.ok(c.stop(id, stopGrace), "stop container")
			same(c, 0, c.status(id).GetExitCode(), "exit code")
		}},
	}
}

// restart restarts the runtime and waits until it responds.
func (c *CaseT) restart() {
	c.ok(c.s.restart(c.ctx), "restart the runtime")
	_, err := c.rs.Version(c.ctx, &v1.VersionRequest{}, grpc.WaitForReady(true))
	c.ok(err, "version after a restart")
}
