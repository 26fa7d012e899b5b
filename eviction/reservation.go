package eviction

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// Reservation returns what the hard thresholds on memory.available and nodefs.available
// keep available of a capacity. Pods cannot request it.
func Reservation(capacity corev1.ResourceList, thresholds []Threshold) corev1.ResourceList {
	reserved := corev1.ResourceList{}
	for _, t := range thresholds {
		name := corev1.ResourceMemory
		switch {
		case !t.IsHard():
			continue
		case t.Signal == NodeFSAvailable:
			name = corev1.ResourceEphemeralStorage
		case t.Signal != MemoryAvailable:
			continue
		}
		total := capacity[name]
		kept := *resource.NewQuantity(int64(t.Value.Of(uint64(max(total.Value(), 0)))), resource.BinarySI) //nolint:gosec // less than total
		if previous := reserved[name]; kept.Cmp(previous) > 0 {
			reserved[name] = kept
		}
	}
	return reserved
}

// Reservation is the function of that name for the thresholds of c, or the default ones.
func (c Config) Reservation(capacity corev1.ResourceList) corev1.ResourceList {
	thresholds := c.Thresholds
	if thresholds == nil {
		thresholds = DefaultThresholds()
	}
	return Reservation(capacity, thresholds)
}
