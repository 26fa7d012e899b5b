package node

import (
	"fmt"
	"io/fs"
	"maps"

	corev1 "k8s.io/api/core/v1"
)

// Detected returns c with what it leaves to the machine: Capacity, what of it is
// Allocatable, and with it the limits of the cgroup of all pods. root is the root directory of the machine. dir is on the file system of pods
// and need not exist. reserved, unless it is nil, returns what of a capacity hard eviction
// thresholds keep available: see eviction.Config.Reservation. The error says that nothing is left.
func (c Config) Detected(root fs.FS, dir string, reserved func(capacity corev1.ResourceList) corev1.ResourceList) (Config, error) {
	if c.Capacity == nil {
		c.Capacity = DetectCapacity(root, c.NodeCgroup, c.CgroupRoot)
		if disk, err := DiskCapacity(dir); err == nil && disk.Sign() > 0 {
			c.Capacity[corev1.ResourceEphemeralStorage] = disk
		}
	}
	if c.Allocatable != nil {
		return c, nil
	}
	var r Reservations
	if reserved != nil {
		r.Eviction = reserved(c.Capacity)
	}
	resources, err := Available(c.Capacity, r)
	if err != nil {
		return c, fmt.Errorf("node: %w; set Allocatable", err)
	}
	c.Allocatable = maps.Clone(resources.Allocatable)
	for name, limit := range c.PodsCgroupLimits {
		if q, ok := c.Allocatable[name]; ok && limit.Cmp(q) < 0 {
			c.Allocatable[name] = limit
		}
	}
	if c.DisableCgroups {
		return c, nil
	}
	// Allocatable would be too low a limit: it leaves the hard eviction thresholds out, and
	// they are compared with what is left of the limit.
	limits := corev1.ResourceList{}
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
		if q, ok := resources.PodsCgroupLimits[name]; ok {
			limits[name] = q
		}
	}
	maps.Copy(limits, c.PodsCgroupLimits)
	c.PodsCgroupLimits = limits
	return c, nil
}
