package agenttest

import (
	"context"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/runtime"
	"github.com/sublet-dev/agent/runtime/cri"
)

// Node is a usage provider for eviction: a node of 1 GiB of memory that is as full as its
// simulated containers make it, with a disk of 1 GiB.
type Node struct {
	Client *cri.Client

	mu       sync.Mutex // guards diskUsed
	diskUsed float64
}

// SetDiskUsed sets the share of the disk that is in use.
func (n *Node) SetDiskUsed(share float64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.diskUsed = share
}

// Usage implements eviction.UsageProvider.
func (n *Node) Usage(ctx context.Context, _ time.Time) (runtime.NodeUsage, error) {
	const gib = 1 << 30
	now := time.Now()
	n.mu.Lock()
	fs := runtime.FSUsage{At: now, CapacityBytes: gib, AvailableBytes: uint64(float64(gib) * (1 - n.diskUsed)), Inodes: 100}
	n.mu.Unlock()
	u := runtime.NodeUsage{Memory: runtime.MemoryUsage{At: now, Capacity: gib}, NodeFS: fs, ImageFS: fs, ContainerFS: fs}
	list, err := n.Client.ContainerStats(ctx)
	if err != nil {
		return u, err
	}
	byPod := map[types.UID]*runtime.PodUsage{}
	for _, c := range list {
		p := byPod[c.PodUID]
		if p == nil {
			p = &runtime.PodUsage{UID: c.PodUID, Memory: runtime.MemoryUsage{At: now}}
			byPod[c.PodUID] = p
		}
		p.Memory.WorkingSet += c.Memory.WorkingSet
		p.Containers = append(p.Containers, c)
		u.Memory.WorkingSet += c.Memory.WorkingSet
	}
	for _, p := range byPod {
		u.Pods = append(u.Pods, *p)
	}
	return u, nil
}
