package runtimetest

import (
	"strings"

	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/internal/hugepages"
)

// cgroupValue is a script that prints the first of some files of a controller, of cgroup
// v1 or v2, whichever the container sees.
func cgroupValue(files ...string) string {
	return "for f in " + strings.Join(files, " ") + "; do [ -e /sys/fs/cgroup/$f ] && cat /sys/fs/cgroup/$f && exit 0; done; echo none"
}

// cgroupOf returns a value of the cgroup of a running container, as cgroupValue does, or ends the
// case as skipped if the container does not see it: the CRI does not promise that.
func (c *CaseT) cgroupOf(id string, files ...string) string {
	value := c.commandOutput(id, sh(cgroupValue(files...))...)
	if value == "none" {
		c.skipped("containers do not see their cgroup")
	}
	return value
}

func limitCases() []testCase {
	return []testCase{
		{"limits of memory and CPU are in the cgroup", "limits would have no effect", confinement | limits, func(c *CaseT) {
			p := c.pod("p")
			for _, v := range []struct{ name, what, script, v1, v2 string }{
				{"memory", "memory_limit_in_bytes 64Mi", cgroupValue("memory.max", "memory/memory.limit_in_bytes"), "67108864", "67108864"},
				{"quota", "cpu_quota 50000 of cpu_period 100000", cgroupValue("cpu.max", "cpu/cpu.cfs_quota_us", "cpu,cpuacct/cpu.cfs_quota_us"), "50000", "50000 100000"},
				{"shares", "cpu_shares 512", cgroupValue("cpu.weight", "cpu/cpu.shares", "cpu,cpuacct/cpu.shares"), "512", ""},
			} {
				got := p.line(v.name, v.script, limited)
				switch {
				case got == "none":
					c.skipped("containers do not see their cgroup")
				case v.v2 == "" && got != v.v1: // the weight of v2 is a conversion of the shares
					c.check(got != "100" && got != "1024", "%s: value in the container's cgroup is %s, the default", v.what, got)
				default:
					c.check(got == v.v1 || got == v.v2, "%s: value in the container's cgroup is %s", v.what, got)
				}
			}
		}},
		{"a change of limits reaches the cgroup", "a resize in place would have no effect", confinement | limits, func(c *CaseT) {
			id := c.pod("p").start("c", longRunTime, limited)
			_, err := c.rs.UpdateContainerResources(c.ctx, &v1.UpdateContainerResourcesRequest{
				ContainerId: id, Linux: &v1.LinuxContainerResources{MemoryLimitInBytes: 96 << 20, CpuPeriod: 100_000, CpuQuota: 75_000, CpuShares: 768},
			})
			c.ok(err, "update resources")
			same(c, "100663296", c.cgroupOf(id, "memory.max", "memory/memory.limit_in_bytes"), "memory_limit_in_bytes 96Mi: value in the container's cgroup after an update")
			quota, _, _ := strings.Cut(c.cgroupOf(id, "cpu.max", "cpu/cpu.cfs_quota_us", "cpu,cpuacct/cpu.cfs_quota_us"), " ")
			same(c, "75000", quota, "cpu_quota 75000: value in the container's cgroup after an update")
		}},
		{"a container runs on its CPUs", "the CPU manager's static policy would have no effect", confinement | limits, func(c *CaseT) {
			cpu, memory := firstAllowed("Cpus_allowed_list"), firstAllowed("Mems_allowed_list")
			got := c.pod("p").line("c", "grep Cpus_allowed_list /proc/self/status | tr -d '\\t'", func(cfg *v1.ContainerConfig) {
				cfg.Linux.Resources.CpusetCpus, cfg.Linux.Resources.CpusetMems = cpu, memory
			})
			same(c, "Cpus_allowed_list:"+cpu, got, "cpuset_cpus "+cpu+": processors of the container")
		}},
		{"a container starts with limits of huge pages", "no pod could start: kubelets always set them", confinement | limits, func(c *CaseT) {
			var limits []*v1.HugepageLimit // of all sizes of the node, as kubelets set them
			for _, size := range c.hugePages() {
				limits = append(limits, &v1.HugepageLimit{PageSize: hugepages.Name(size)})
			}
			same(c, 0, c.pod("p").exitCode("c", "exit 0", func(cfg *v1.ContainerConfig) { cfg.Linux.Resources.HugepageLimits = limits }), "exit code")
		}},
		{"a pod with overhead starts", "pods of a runtime class with overhead could not start", confinement | limits, func(c *CaseT) {
			p := c.pod("p", func(cfg *v1.PodSandboxConfig) {
				cfg.Linux.Overhead = &v1.LinuxContainerResources{CpuPeriod: 100_000, CpuQuota: 10_000, CpuShares: 102, MemoryLimitInBytes: 16 << 20}
				cfg.Linux.Resources = &v1.LinuxContainerResources{CpuPeriod: 100_000, CpuQuota: 50_000, CpuShares: 512, MemoryLimitInBytes: 64 << 20}
			})
			same(c, 0, p.exitCode("c", "exit 0", limited), "exit code")
		}},
	}
}
