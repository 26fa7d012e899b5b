package runtimetest

import (
	"net/netip"

	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// isAddress expects the text of an IP address.
func (c *CaseT) isAddress(ip, what string) {
	_, err := netip.ParseAddr(ip)
	c.check(err == nil, "%s %q is not an IP address", what, ip)
}

// handlers returns the runtime handlers that the runtime reports, or ends the case as
// skipped if it reports none: they came with CRI 1.30.
func (c *CaseT) handlers() []*v1.RuntimeHandler {
	r, err := c.rs.Status(c.ctx, &v1.StatusRequest{})
	c.ok(err, "status")
	if len(r.GetRuntimeHandlers()) == 0 {
		c.skipped("the runtime reports no handlers")
	}
	return r.GetRuntimeHandlers()
}

func podFieldCases() []testCase {
	return []testCase{
		{"pods have addresses of their own", "traffic for one pod would reach another", confinement, func(c *CaseT) {
			a, b := c.pod("a"), c.pod("b")
			one, two := a.status().GetNetwork().GetIp(), b.status().GetNetwork().GetIp()
			c.check(one != two, "two pods have the same address %s", one)
		}},
		{"the runtime reports its handlers", "pods with user namespaces or recursive read-only mounts would be refused", 0, func(c *CaseT) {
			names := map[string]int{}
			for _, h := range c.handlers() {
				names[h.GetName()]++
			}
			c.check(names[""] > 0, "runtime_handlers lacks the default handler, which has the name \"\"")
			for name, n := range names {
				c.check(n == 1, "runtime_handlers has %q twice", name)
			}
		}},
		{"a pod of a runtime class names its handler", "the overhead and features of another runtime class would be used", 0, func(c *CaseT) {
			name := ""
			for _, h := range c.handlers() {
				if name == "" {
					name = h.GetName()
				}
			}
			if name == "" {
				c.skipped("the runtime reports no handler with a name")
			}
			p, err := c.runHandler(c.podConfig("p"), name)
			c.ok(err, "run pod with handler "+name)
			same(c, name, p.status().GetRuntimeHandler(), "runtime_handler in the status")
			for _, item := range c.pods(&v1.PodSandboxFilter{Id: p.id}) {
				same(c, name, item.GetRuntimeHandler(), "runtime_handler in the list")
			}
		}},
		{"verbose answers have more information", "crictl inspect would show nothing", 0, func(c *CaseT) {
			p := c.pod("p")
			id := p.start("c", longRunTime)
			st, err := c.rs.Status(c.ctx, &v1.StatusRequest{Verbose: true})
			c.ok(err, "verbose status")
			c.check(len(st.GetInfo()) > 0, "info of the verbose status of the runtime is empty")
			ps, err := c.rs.PodSandboxStatus(c.ctx, &v1.PodSandboxStatusRequest{PodSandboxId: p.id, Verbose: true})
			c.ok(err, "verbose status of pod")
			c.check(len(ps.GetInfo()) > 0, "info of the verbose status of a pod is empty")
			cs, err := c.rs.ContainerStatus(c.ctx, &v1.ContainerStatusRequest{ContainerId: id, Verbose: true})
			c.ok(err, "verbose status of container")
			c.check(len(cs.GetInfo()) > 0, "info of the verbose status of a container is empty")
			is, err := c.is.ImageStatus(c.ctx, &v1.ImageStatusRequest{Image: &v1.ImageSpec{Image: c.s.image}, Verbose: true})
			c.ok(err, "verbose status of image")
			c.check(len(is.GetInfo()) > 0, "info of the verbose status of an image is empty")
		}},
		{"answers have the extra information only if it is requested", "each status of a pod would carry what no kubelet reads", 0, func(c *CaseT) {
			p := c.pod("p")
			id := p.start("c", longRunTime)
			st, err := c.rs.Status(c.ctx, &v1.StatusRequest{})
			c.ok(err, "status")
			ps, err := c.rs.PodSandboxStatus(c.ctx, &v1.PodSandboxStatusRequest{PodSandboxId: p.id})
			c.ok(err, "status of pod")
			cs, err := c.rs.ContainerStatus(c.ctx, &v1.ContainerStatusRequest{ContainerId: id})
			c.ok(err, "status of container")
			is, err := c.is.ImageStatus(c.ctx, &v1.ImageStatusRequest{Image: &v1.ImageSpec{Image: c.s.image}})
			c.ok(err, "status of image")
			for what, info := range map[string]map[string]string{
				"the runtime": st.GetInfo(), "a pod": ps.GetInfo(), "a container": cs.GetInfo(), "an image": is.GetInfo(),
			} {
				same(c, 0, len(info), "number of entries in info of the status of "+what+", which is not verbose,")
			}
		}},
		{"a container reports its stop signal", "status.containerStatuses.stopSignal would be empty", 0, func(c *CaseT) {
			id := c.pod("p").create("c", sh(longRunTime), func(cfg *v1.ContainerConfig) { cfg.StopSignal = v1.Signal_SIGNAL_SIGUSR1 })
			same(c, v1.Signal_SIGNAL_SIGUSR1, c.status(id).GetStopSignal(), "stop_signal in the status")
		}},
		{"a container reports the user that it was given", "status.containerStatuses.user would show another user than the one that runs", isolation, func(c *CaseT) {
			st := c.status(c.pod("p").start("c", longRunTime, security(func(sc *v1.LinuxContainerSecurityContext) {
				sc.RunAsUser, sc.RunAsGroup = &v1.Int64Value{Value: 12345}, &v1.Int64Value{Value: 23456}
				sc.SupplementalGroups = []int64{34567}
			})))
			u := st.GetUser().GetLinux()
			same(c, 12345, u.GetUid(), "user.linux.uid in the status")
			same(c, 23456, u.GetGid(), "user.linux.gid in the status")
			groups := map[int64]bool{}
			for _, g := range u.GetSupplementalGroups() {
				groups[g] = true
			}
			c.check(groups[34567], "user.linux.supplemental_groups in the status are %v, want 34567 among them", u.GetSupplementalGroups())
		}},
	}
}
