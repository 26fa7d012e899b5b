package stats

import (
	"path"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sublet-dev/agent/runtime"
)

// Names of system containers, which are those of a kubelet.
const (
	// SystemContainerKubelet is the cgroup of the agent, with all processes in it.
	SystemContainerKubelet = "kubelet"
	// SystemContainerPods is the cgroup of all pods.
	SystemContainerPods = "pods"
)

// systemContainers measures the cgroups of the agent and of all pods, as far as they are known.
func (p *Provider) systemContainers(u *runtime.NodeUsage, what scope) (all []ContainerStats) {
	now, pods := time.Now(), p.allPods()
	// The usage of a cgroup above that of all pods is not the agent's.
	if agent := p.agentCgroup(); agent != "" && !strings.HasPrefix(pods+"/", agent+"/") {
		memory, _ := p.groups().boundOf(agent, now)
		if s, ok := p.systemContainer(SystemContainerKubelet, agent, memory, now, what); ok {
			s.StartTime = metav1.NewTime(p.created)
			all = append(all, s)
		}
	}
	if pods != "" {
		if s, ok := p.systemContainer(SystemContainerPods, pods, u.PodsMemory, now, what); ok {
			all = append(all, s)
		}
	}
	return all
}

// systemContainer returns the usage of a cgroup, whose memory is measured. ok is false if neither
// its CPU time nor its memory is known.
func (p *Provider) systemContainer(name, group string, memory runtime.MemoryUsage, now time.Time, what scope) (s ContainerStats, ok bool) {
	g := p.groups()
	var cpuPressure, memoryPressure, ioPressure runtime.PSIStats
	cpu, _ := g.cpuOf(group, now)
	swap, _ := g.swapOf(group, g.reader, now)
	g.addPressures(group, &memoryPressure, what.io(&ioPressure), &cpuPressure, now)
	cpu = p.rate(group, cpu)
	s = ContainerStats{
		Name: name, CPU: cpuStats(cpu, cpuPressure), Memory: memoryStats(memory, memoryPressure),
		IO: ioStats(ioPressure), Swap: swapStats(&swap),
	}
	return s, s.CPU != nil || s.Memory != nil
}

// findAgentCgroup returns the cgroup of this process, or "" if it has none of its own. On v1 it
// has one if it is in the same for CPU time and for memory.
func (p *Provider) findAgentCgroup() string {
	var all, memory, cpuacct string
	err := p.procUncached.head("self/cgroup", maxFile, func(data []byte) error {
		for controllers, at := range cgroupLines(data) {
			for name := range strings.SplitSeq(string(controllers), ",") {
				switch name {
				case "":
					all = string(at)
				case "memory":
					memory = string(at)
				case "cpuacct":
					cpuacct = string(at)
				}
			}
		}
		return nil
	})
	if !p.groups().v2 {
		all = memory
		if memory != cpuacct {
			all = ""
		}
	}
	// A path with ".." is outside of the cgroup namespace.
	if err != nil || len(all) < 2 || path.Clean(all) != all || strings.HasPrefix(all, "/..") {
		return ""
	}
	return all
}
