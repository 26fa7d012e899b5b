package eviction

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/sublet-dev/agent/runtime"
)

// KernelConfig says what the kernel is to report. The zero value is for the memory of
// the machine.
type KernelConfig struct {
	// NodeCgroup is the cgroup whose memory limit is the node's, as a path below the
	// hierarchies' roots. Without a limit the machine counts. Default: the machine.
	NodeCgroup string
	// PodsCgroup returns the cgroup of all pods, if it has a memory limit, or "" while it
	// is unknown. It need not exist yet. Default: none.
	PodsCgroup func() string

	CgroupMount string // Default: /sys/fs/cgroup
	ProcMount   string // Default: /proc
}

// KernelNotifiers returns the notifiers of all that a Linux kernel can report about
// memory: on cgroup v1, usage that crosses a threshold, of the node and of all pods; on
// v2, events of their cgroups that have a limit; and stalls of the machine's tasks. Those
// that this kernel lacks return runtime.ErrUnsupported from Watch. It does no I/O.
func KernelNotifiers(c KernelConfig) []ThresholdNotifier {
	if c.CgroupMount == "" {
		c.CgroupMount = "/sys/fs/cgroup"
	}
	if c.ProcMount == "" {
		c.ProcMount = "/proc"
	}
	node := func() string { return filepath.Join("/", c.NodeCgroup) }
	notifiers := []ThresholdNotifier{c.usage(c.limitedCgroup, MemoryAvailable), PSINotifier{Path: filepath.Join(c.ProcMount, "pressure/memory")}}
	if c.NodeCgroup != "" {
		notifiers = append(notifiers, cgroupEventsNotifier{c.CgroupMount, node})
	}
	if c.PodsCgroup != nil {
		notifiers = append(notifiers, c.usage(c.PodsCgroup, AllocatableMemoryAvailable), cgroupEventsNotifier{c.CgroupMount, c.PodsCgroup})
	}
	return notifiers
}

// limitedCgroup returns the cgroup of v1 that bounds the memory of the node: the one with the
// lowest limit of NodeCgroup and those above it, or "/" if none has a limit.
func (c *KernelConfig) limitedCgroup() string {
	const unlimited = 1 << 62 // the kernel has a number for that, which depends on the page size
	group, lowest := "/", uint64(unlimited)
	for at := filepath.Join("/", c.NodeCgroup); at != "/"; at = filepath.Dir(at) {
		limit, err := numberIn(filepath.Join(c.CgroupMount, "memory", at, "memory.limit_in_bytes"))
		if err == nil && limit < lowest {
			group, lowest = at, limit
		}
	}
	return group
}

func (c *KernelConfig) usage(group func() string, signal Signal) ThresholdNotifier {
	return newMemoryThresholdNotifier(filepath.Join(c.CgroupMount, "memory"), group, signal)
}

// cgroupEventsNotifier reports the memory events of a cgroup v2 cgroup, once it exists.
type cgroupEventsNotifier struct {
	mount string
	group func() string
}

// cgroupPollPeriod is the interval of checks for a cgroup that does not exist yet.
const cgroupPollPeriod = 10 * time.Second

// Watch implements ThresholdNotifier.
func (n cgroupEventsNotifier) Watch(ctx context.Context, notify func()) error {
	if _, err := os.Stat(filepath.Join(n.mount, "cgroup.controllers")); err != nil {
		return fmt.Errorf("memory events: %w: no cgroup v2: %w", runtime.ErrUnsupported, err)
	}
	poll := time.NewTicker(cgroupPollPeriod)
	defer poll.Stop()
	for {
		if group := n.group(); group != "" {
			path := filepath.Join(n.mount, group, "memory.events.local")
			if _, err := os.Stat(path); err == nil {
				return MemoryEventsNotifier{Path: path}.Watch(ctx, notify)
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-poll.C:
		}
	}
}
