package stats

import (
	"errors"
	"path"
	"strings"
	"time"

	"github.com/sublet-dev/agent/internal/logattr"
	"github.com/sublet-dev/agent/runtime"
)

// addDetails measures what eviction does not need: swap, page faults of the machine, limits on
// the memory of pods, network, and the pressure of pods whether or not tasks on the node wait.
// The pods are those of u, in the same order.
func (p *Provider) addDetails(u *runtime.NodeUsage, pods []Pod, what scope) {
	now := time.Now()
	var swapErr, networkErr error
	u.Swap, swapErr = p.nodeSwap(now)
	vmstatErr := addVMStat(p.procUncached, &u.Memory)
	var hosts []string // nil: no network is measured
	var devices map[string]string
	if what == everything {
		devices = p.deviceNames()
		u.Network, networkErr = p.nodeNetwork(now)
		hosts = p.hostNetworks()
	}
	if err := errors.Join(swapErr, vmstatErr, networkErr); err != nil {
		p.cfg.Logger.Debug("node stats incomplete", logattr.Err(err))
	}
	g := p.groups()
	for i := range pods {
		pod, into := &pods[i], &u.Pods[i]
		if pod.Cgroup == "" {
			continue
		}
		now := time.Now()
		if swap, err := g.swapOf(pod.Cgroup, g.reader, now); err == nil {
			into.Swap = swap
		}
		if !into.Memory.At.IsZero() && mayHaveMemoryLimit(pod.Pod) {
			into.Memory.Capacity = g.memoryLimit(g.uncached, pod.Cgroup)
		}
		g.addPressures(pod.Cgroup, &into.MemoryPressure, what.io(&into.IOPressure), &into.CPUPressure, now)
		for j := range into.Containers {
			g.addContainerDetails(&into.Containers[j], pod, devices, what, now)
		}
		into.Network = p.podNetwork(pod, into.Containers, hosts)
	}
}

// addContainerDetails measures what a runtime does not report of a container. Its values stay
// unknown if it has no cgroup of a known name.
func (g *groups) addContainerDetails(c *runtime.ContainerUsage, pod *Pod, devices map[string]string, what scope, now time.Time) {
	needsSwap := c.Swap.At.IsZero()
	needsPressure := g.v2 && c.MemoryPressure.At.IsZero() && c.IOPressure.At.IsZero() && c.CPUPressure.At.IsZero()
	if !needsSwap && !needsPressure && what != everything {
		return
	}
	for _, name := range containerGroups(pod.Cgroup, c.ID) {
		if !g.exists(name) {
			continue
		}
		if needsSwap {
			if swap, err := g.swapOf(name, g.uncached, now); err == nil {
				c.Swap = swap
			}
		}
		if needsPressure {
			g.addPressures(name, &c.MemoryPressure, what.io(&c.IOPressure), &c.CPUPressure, now)
		}
		if what == everything {
			g.addContainerCounters(c, name, devices, now)
		}
		return
	}
}

// containerGroups returns the cgroups that a container of a pod can have, by the names that
// runtimes give them with either cgroup driver.
func containerGroups(pod, id string) []string {
	switch {
	case id == "" || path.Base(id) != id || id == "." || id == "..":
		return nil
	case strings.HasSuffix(pod, ".slice"):
		return []string{pod + "/cri-containerd-" + id + ".scope", pod + "/crio-" + id + ".scope"}
	default:
		return []string{pod + "/" + id, pod + "/crio-" + id}
	}
}
