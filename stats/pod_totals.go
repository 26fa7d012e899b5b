package stats

import (
	"time"

	"github.com/sublet-dev/agent/runtime"
)

// addContainerTotals sets what is not known of the pod itself to the sum of its containers, as the kubelet does:
// pods have no cgroup of a known name where cgroups are left to the runtime.
func addContainerTotals(u *runtime.PodUsage) {
	if u.CPU.At.IsZero() {
		u.CPU = totalCPU(u.Containers)
	}
	if u.Memory.At.IsZero() {
		u.Memory = totalMemory(u.Containers)
	}
	if u.Swap.At.IsZero() {
		u.Swap = totalSwap(u.Containers)
	}
}

// A sum is as old as its oldest part, and has no rate, limit or capacity if one of its parts has none.

func totalCPU(containers []runtime.ContainerUsage) runtime.CPUUsage {
	t := runtime.CPUUsage{HasRate: true}
	for i := range containers {
		c := &containers[i].CPU
		if c.At.IsZero() {
			continue
		}
		t.At = older(t.At, c.At)
		t.UsageCoreNanoSeconds += c.UsageCoreNanoSeconds
		t.UsageNanoCores += c.UsageNanoCores
		t.HasRate = t.HasRate && c.HasRate
	}
	return t
}

func totalMemory(containers []runtime.ContainerUsage) runtime.MemoryUsage {
	t, bounded := runtime.MemoryUsage{HasCache: true}, true
	for i := range containers {
		c := &containers[i].Memory
		if c.At.IsZero() {
			continue
		}
		t.At = older(t.At, c.At)
		t.Capacity, bounded = t.Capacity+c.Capacity, bounded && c.Capacity > 0
		t.Usage += c.Usage
		t.WorkingSet += c.WorkingSet
		t.RSS += c.RSS
		t.Cache, t.HasCache = t.Cache+c.Cache, t.HasCache && c.HasCache
		t.PageFaults += c.PageFaults
		t.MajorFaults += c.MajorFaults
	}
	if !bounded {
		t.Capacity = 0
	}
	return t
}

func totalSwap(containers []runtime.ContainerUsage) runtime.SwapUsage {
	t := runtime.SwapUsage{HasLimit: true}
	for i := range containers {
		c := &containers[i].Swap
		if c.At.IsZero() {
			continue
		}
		t.At = older(t.At, c.At)
		t.Usage += c.Usage
		t.Limit += c.Limit
		t.HasLimit = t.HasLimit && c.HasLimit
	}
	return t
}

func older(a, b time.Time) time.Time {
	if a.IsZero() || b.Before(a) {
		return b
	}
	return a
}
