package main

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/sublet-dev/agent/eviction"
	"github.com/sublet-dev/agent/node"
)

// nodeResources are the figures of a node that a kubelet reports and enforces.
type nodeResources struct {
	Capacity    corev1.ResourceList
	Allocatable corev1.ResourceList // pods are admitted for this sum of requests
	PodsLimits  corev1.ResourceList // limits of the cgroup of all pods: cpu, memory, pid
}

// computeResources subtracts reservations from capacity:
//
//	limits of all pods = capacity - kube-reserved - system-reserved
//	allocatable        = limits of all pods - hard eviction thresholds
//
// The thresholds are those on memory.available and nodefs.available. Memory of huge
// pages is not allocatable as memory.
func computeResources(capacity, kubeReserved, systemReserved corev1.ResourceList, thresholds []eviction.Threshold) (nodeResources, error) {
	r := nodeResources{Capacity: capacity, Allocatable: corev1.ResourceList{}, PodsLimits: corev1.ResourceList{}}
	evictionReserve := evictionReservation(capacity, thresholds)
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(capacity)) {
		left := capacity[name].DeepCopy()
		if strings.HasPrefix(string(name), corev1.ResourceHugePagesPrefix) {
			r.Allocatable[name] = left
			continue
		}
		left.Sub(kubeReserved[name])
		left.Sub(systemReserved[name])
		if left.Sign() <= 0 {
			of := capacity[name]
			errs = append(errs, fmt.Errorf("-kube-reserved and -system-reserved leave no %s for pods: the node has %s", name, of.String()))
			continue
		}
		if name != corev1.ResourceEphemeralStorage {
			r.PodsLimits[name] = left.DeepCopy()
		}
		if name == node.ResourcePIDs {
			continue // pods do not request processes
		}
		left.Sub(evictionReserve[name])
		if name == corev1.ResourceMemory {
			left.Sub(hugePageMemory(capacity))
		}
		if left.Sign() <= 0 {
			errs = append(errs, fmt.Errorf("reservations, -eviction-hard and huge pages leave no allocatable %s", name))
			continue
		}
		r.Allocatable[name] = left
	}
	for _, reserved := range []corev1.ResourceList{kubeReserved, systemReserved} {
		for _, name := range slices.Sorted(maps.Keys(reserved)) {
			if _, ok := capacity[name]; !ok {
				errs = append(errs, fmt.Errorf("cannot reserve %s: capacity of the node not known", name))
			}
		}
	}
	return r, errors.Join(errs...)
}

// evictionReservation is what hard thresholds keep free.
func evictionReservation(capacity corev1.ResourceList, thresholds []eviction.Threshold) corev1.ResourceList {
	reserve := corev1.ResourceList{}
	for _, t := range thresholds {
		name := corev1.ResourceMemory
		switch {
		case !t.IsHard():
			continue
		case t.Signal == eviction.NodeFSAvailable:
			name = corev1.ResourceEphemeralStorage
		case t.Signal != eviction.MemoryAvailable:
			continue
		}
		total := capacity[name]
		reserve[name] = *resource.NewQuantity(int64(t.Value.Of(uint64(max(total.Value(), 0)))), resource.BinarySI)
	}
	return reserve
}

func hugePageMemory(capacity corev1.ResourceList) resource.Quantity {
	var sum resource.Quantity
	for name, q := range capacity {
		if strings.HasPrefix(string(name), corev1.ResourceHugePagesPrefix) {
			sum.Add(q)
		}
	}
	return sum
}

// parseReservation reads cpu=100m,memory=1Gi,ephemeral-storage=1Gi,pid=1000.
func parseReservation(list string) (corev1.ResourceList, error) {
	reserved := corev1.ResourceList{}
	var errs []error
	for _, entry := range split(list) {
		key, value, _ := strings.Cut(entry, "=")
		name := corev1.ResourceName(strings.TrimSpace(key))
		q, err := resource.ParseQuantity(strings.TrimSpace(value))
		_, duplicate := reserved[name]
		switch {
		case !slices.Contains([]corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage, node.ResourcePIDs}, name):
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

// podLimit is the number of pods that a node runs at once.
func podLimit(maxPods, podsPerCore int, capacity corev1.ResourceList) int {
	if podsPerCore == 0 {
		return maxPods
	}
	return min(maxPods, podsPerCore*int(capacity.Cpu().Value()))
}
