package node

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/sublet-dev/agent/podspec"
)

// Reservations are resources that pods cannot have.
type Reservations struct {
	Kube     corev1.ResourceList // for the agent and the runtime
	System   corev1.ResourceList // for other processes of the system
	Eviction corev1.ResourceList // what hard eviction thresholds keep available: see eviction.Reservation
}

// Resources are the figures of a node that a kubelet reports and enforces.
type Resources struct {
	Capacity         corev1.ResourceList // what the machine has
	Allocatable      corev1.ResourceList // the sum of requests that pods are admitted for
	PodsCgroupLimits corev1.ResourceList // limits of the cgroup of all pods: cpu, memory, ResourcePIDs
}

// Available subtracts reservations from capacity:
//
//	limits of all pods = capacity - kube-reserved - system-reserved
//	allocatable        = limits of all pods - hard eviction thresholds
//
// Memory of huge pages is not allocatable as memory. The error names all resources of
// which nothing is left, and reservations of resources that the capacity does not have.
func Available(capacity corev1.ResourceList, reserved Reservations) (Resources, error) {
	r := Resources{Capacity: capacity, Allocatable: corev1.ResourceList{}, PodsCgroupLimits: corev1.ResourceList{}}
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(capacity)) {
		left := capacity[name].DeepCopy()
		if podspec.IsHugePages(name) {
			r.Allocatable[name] = left
			continue
		}
		left.Sub(reserved.Kube[name])
		left.Sub(reserved.System[name])
		if left.Sign() <= 0 {
			of := capacity[name]
			errs = append(errs, fmt.Errorf("kube-reserved and system-reserved leave no %s for pods: the node has %s", name, of.String()))
			continue
		}
		if name != corev1.ResourceEphemeralStorage {
			r.PodsCgroupLimits[name] = left.DeepCopy()
		}
		if name == ResourcePIDs {
			continue // pods do not request processes
		}
		left.Sub(reserved.Eviction[name])
		if name == corev1.ResourceMemory {
			left.Sub(hugePageMemory(capacity))
		}
		if left.Sign() <= 0 {
			errs = append(errs, fmt.Errorf("reservations, hard eviction thresholds and huge pages leave no allocatable %s", name))
			continue
		}
		r.Allocatable[name] = left
	}
	for _, list := range []corev1.ResourceList{reserved.Kube, reserved.System} {
		for _, name := range slices.Sorted(maps.Keys(list)) {
			if _, ok := capacity[name]; !ok {
				errs = append(errs, fmt.Errorf("cannot reserve %s: capacity of the node not known", name))
			}
		}
	}
	return r, errors.Join(errs...)
}

func hugePageMemory(capacity corev1.ResourceList) resource.Quantity {
	var sum resource.Quantity
	for name, q := range capacity {
		if podspec.IsHugePages(name) {
			sum.Add(q)
		}
	}
	return sum
}

// ParseReservation reads a list such as cpu=100m,memory=1Gi,ephemeral-storage=1Gi,pid=1000,
// the form of the kubelet's --kube-reserved and --system-reserved, which may end in a comma.
func ParseReservation(list string) (corev1.ResourceList, error) {
	reserved := corev1.ResourceList{}
	known := []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage, ResourcePIDs}
	var errs []error
	for entry := range strings.FieldsFuncSeq(list, func(r rune) bool { return r == ',' }) {
		key, value, _ := strings.Cut(entry, "=")
		name := corev1.ResourceName(strings.TrimSpace(key))
		q, err := resource.ParseQuantity(strings.TrimSpace(value))
		_, duplicate := reserved[name]
		switch {
		case !slices.Contains(known, name):
			errs = append(errs, fmt.Errorf("%q: resource must be cpu, memory, ephemeral-storage or pid", entry))
		case err != nil || q.Sign() < 0:
			errs = append(errs, fmt.Errorf("%q: invalid quantity %q", entry, value))
		case duplicate:
			errs = append(errs, fmt.Errorf("%q: duplicate resource", entry))
		default:
			reserved[name] = q
		}
	}
	return reserved, errors.Join(errs...)
}
