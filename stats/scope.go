package stats

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/runtime"
)

// scope is what a Summary has.
type scope int

const (
	everything scope = iota
	cpuAndMemory
)

// io returns where the pressure on disks is read into, nil if it is not.
func (s scope) io(into *runtime.PSIStats) *runtime.PSIStats {
	if s == cpuAndMemory {
		return nil
	}
	return into
}

// CPUAndMemoryStats is a [Provider.Summary] of CPU time, memory, swap and the pressure on CPUs and
// memory only, as a kubelet has for only_cpu_and_memory=true and for metrics-server. It measures
// no disks and no networks, counts no files, and blocks for a runtime call of at most 5s. Run
// need not have been called.
func (p *Provider) CPUAndMemoryStats(ctx context.Context, nodeName string, pods []*corev1.Pod) (Summary, error) {
	measured := p.cfg.Pods()
	containers, runtimeErr := p.containers(ctx)
	var u runtime.NodeUsage
	errs := append(p.nodeCPUAndMemory(&u, time.Now()), runtimeErr)
	u.IOPressure = runtime.PSIStats{}
	u.Pods = make([]runtime.PodUsage, 0, len(measured))
	for i := range measured {
		pod := &measured[i]
		one := p.podCPUAndMemory(pod, time.Now())
		for _, c := range containers[pod.Pod.UID] {
			if c.Running {
				c.Rootfs, c.Logs, c.IOPressure = runtime.DiskUsage{}, runtime.DiskUsage{}, runtime.PSIStats{}
				one.Containers = append(one.Containers, p.container(pod.Pod, c))
			}
		}
		u.Pods = append(u.Pods, one)
	}
	p.forget(measured, containers, runtimeErr)
	if err := p.sum(&u, errs); err != nil {
		return Summary{}, err
	}
	return p.summarize(nodeName, &u, runtimeErr, measured, pods, cpuAndMemory), nil
}

// summarize completes a measurement of the measured pods with what only a Summary has.
func (p *Provider) summarize(nodeName string, u *runtime.NodeUsage, incomplete error, measured []Pod, pods []*corev1.Pod, what scope) Summary {
	p.addDetails(u, measured, what)
	s := Summarize(nodeName, p.BootTime(), u, pods)
	s.Incomplete = incomplete
	s.Node.SystemContainers = p.systemContainers(u, what)
	return s
}
