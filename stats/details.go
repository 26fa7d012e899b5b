package stats

import (
	"errors"
	"path"
	"strings"
	"time"

	"github.com/sublet-dev/agent/internal/logattr"
	"github.com/sublet-dev/agent/runtime"
)

// addDetails measures what eviction does not need: swap, network, and the pressure of pods
// whether or not tasks on the node wait. The pods are those of u, in the same order.
func (p *Provider) addDetails(u *runtime.NodeUsage, pods []Pod) {
	now := time.Now()
	var swapErr, networkErr error
	u.Swap, swapErr = p.nodeSwap(now)
	u.Network, networkErr = p.nodeNetwork(now)
	if err := errors.Join(swapErr, networkErr); err != nil {
		p.cfg.Logger.Debug("node stats incomplete", logattr.Err(err))
	}
	g, hosts := p.groups(), p.hostNetworks()
	for i := range pods {
		pod, into := &pods[i], &u.Pods[i]
		if pod.Cgroup == "" {
			continue
		}
		now := time.Now()
		if swap, err := g.swapOf(pod.Cgroup, g.reader, now); err == nil {
			into.Swap = swap
		}
		g.addPressures(pod.Cgroup, &into.MemoryPressure, &into.IOPressure, &into.CPUPressure, now)
		for j := range into.Containers {
			g.addContainerDetails(&into.Containers[j], pod.Cgroup, now)
		}
		into.Network = p.podNetwork(pod, into.Containers, hosts)
	}
}

// addContainerDetails measures what a runtime does not report of a container. Its values stay
// unknown if it has no cgroup of a known name.
func (g *groups) addContainerDetails(c *runtime.ContainerUsage, pod string, now time.Time) {
	needsSwap := c.Swap.At.IsZero()
	needsPressure := g.v2 && c.MemoryPressure.At.IsZero() && c.IOPressure.At.IsZero() && c.CPUPressure.At.IsZero()
	if !needsSwap && !needsPressure {
		return
	}
	for _, name := range containerGroups(pod, c.ID) {
		if !g.exists(name) {
			continue
		}
		if needsSwap {
			if swap, err := g.swapOf(name, g.uncached, now); err == nil {
				c.Swap = swap
			}
		}
		if needsPressure {
			g.addPressures(name, &c.MemoryPressure, &c.IOPressure, &c.CPUPressure, now)
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
