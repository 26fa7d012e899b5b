package kubeletconfig

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/kubelet/config/v1beta1"

	"github.com/sublet-dev/agent/node"
	"github.com/sublet-dev/agent/podspec"
)

const (
	reservedMemoryPath = "reservedMemory"
	nodeSeparator      = ";" // between the NUMA nodes of its flag
)

// ReservedMemory returns what is reserved of the memory and the huge pages of each NUMA node, as
// cpumanager.Config has it: nil unless memoryManagerPolicy is Static. That the machine has it is checked there.
func (c *Config) ReservedMemory() map[int]corev1.ResourceList {
	if c.kubelet.MemoryManagerPolicy != v1beta1.StaticMemoryManagerPolicy || len(c.kubelet.ReservedMemory) == 0 {
		return nil
	}
	nodes := map[int]corev1.ResourceList{}
	for _, r := range c.kubelet.ReservedMemory {
		id := int(r.NumaNode)
		if nodes[id] == nil {
			nodes[id] = corev1.ResourceList{}
		}
		maps.Copy(nodes[id], r.Limits.DeepCopy())
	}
	return nodes
}

// reservedMemory checks what does not depend on the machine. As for a kubelet, a node may be there twice with
// different resources.
func (v *validator) reservedMemory() {
	type key struct {
		node int32
		name corev1.ResourceName
	}
	known := map[key]bool{}
	for _, r := range v.ReservedMemory {
		v.fail(r.NumaNode < 0, "reservedMemory: NUMA node %d must be at least 0", r.NumaNode)
		for _, name := range slices.Sorted(maps.Keys(r.Limits)) {
			q, k := r.Limits[name], key{r.NumaNode, name}
			v.fail(!isMemory(name), "reservedMemory: NUMA node %d: %q must be memory, or hugepages-<size>", r.NumaNode, name)
			_, isExact := q.AsInt64()
			v.fail(q.Sign() <= 0 || !isExact, "reservedMemory: NUMA node %d: %s of %s must be bytes, more than 0", r.NumaNode, q.String(), name)
			v.fail(known[k], "reservedMemory: NUMA node %d is given twice with %s; add both", r.NumaNode, name)
			known[k] = true
		}
	}
}

func isMemory(name corev1.ResourceName) bool {
	return name == corev1.ResourceMemory || podspec.IsHugePages(name)
}

// reserveMemory takes the huge pages that are reserved of NUMA nodes from what is allocatable. The error says that the memory
// that is reserved of them is not what the node keeps.
func (c *Config) reserveMemory(r node.Resources, reserved node.Reservations) error {
	sums := corev1.ResourceList{}
	for _, limits := range c.ReservedMemory() {
		for name, q := range limits {
			sum := sums[name]
			sum.Add(q)
			sums[name] = sum
		}
	}
	if len(sums) == 0 {
		return nil
	}
	errs := []error{sumOfMemory(sums[corev1.ResourceMemory], reserved)}
	delete(sums, corev1.ResourceMemory)
	for _, name := range slices.Sorted(maps.Keys(sums)) {
		left, has, sum := r.Allocatable[name].DeepCopy(), r.Capacity[name], sums[name]
		left.Sub(sum)
		if left.Sign() < 0 {
			errs = append(errs, fmt.Errorf("reservedMemory: %s of %s, of which the machine has %s", sum.String(), name, has.String()))
			continue
		}
		r.Allocatable[name] = left
	}
	return errors.Join(errs...)
}

// sumOfMemory returns an error if the memory of all NUMA nodes is not the memory that is reserved of the node.
func sumOfMemory(sum resource.Quantity, reserved node.Reservations) error {
	var want resource.Quantity
	var parts []string
	for _, list := range []corev1.ResourceList{reserved.Kube, reserved.System, reserved.Eviction} {
		q := list[corev1.ResourceMemory]
		want.Add(q)
		parts = append(parts, bytesText(q))
	}
	missing := want.DeepCopy()
	missing.Sub(sum)
	advice := "add %s to it"
	switch missing.Sign() {
	case 0:
		return nil
	case -1:
		missing.Neg()
		advice = "take %s from it"
	}
	return fmt.Errorf("reservedMemory: the memory of all NUMA nodes is %s, but kubeReserved, systemReserved and the hard threshold of memory.available are %s together (%s): "+advice,
		bytesText(sum), bytesText(want), strings.Join(parts, " + "), bytesText(missing))
}

// bytesText is the form in which quantities are easy to compare.
func bytesText(q resource.Quantity) string {
	return resource.NewQuantity(q.Value(), resource.BinarySI).String()
}

// parseReservedMemory reads 0:memory=1Gi,hugepages-1Gi=2Gi;1:memory=1Gi. What it means is checked by Validate.
func parseReservedMemory(text string) ([]v1beta1.MemoryReservation, error) {
	var all []v1beta1.MemoryReservation
	for entry := range strings.SplitSeq(text, nodeSeparator) {
		if strings.TrimSpace(entry) == "" {
			continue
		}
		id, limits, ok := strings.Cut(entry, ":")
		n, err := strconv.ParseInt(strings.TrimSpace(id), 10, 32)
		if err != nil || !ok {
			return nil, fmt.Errorf("%q must be the number of a NUMA node, and what is reserved of it: 0:memory=1Gi,hugepages-2Mi=64Mi", entry)
		}
		r := v1beta1.MemoryReservation{NumaNode: int32(n), Limits: corev1.ResourceList{}}
		for limit := range strings.SplitSeq(limits, ",") {
			key, value, _ := strings.Cut(limit, "=")
			name := corev1.ResourceName(strings.TrimSpace(key))
			q, err := resource.ParseQuantity(strings.TrimSpace(value))
			if _, twice := r.Limits[name]; twice {
				return nil, fmt.Errorf("%q: NUMA node %d is given twice with %s", entry, n, name)
			}
			if err != nil {
				return nil, fmt.Errorf("%q: %q must be memory=1Gi or the like: %w", entry, limit, err)
			}
			r.Limits[name] = q
		}
		all = append(all, r)
	}
	return all, nil
}

// joinReservedMemory is the inverse of parseReservedMemory.
func joinReservedMemory(all []v1beta1.MemoryReservation) string {
	entries := make([]string, 0, len(all))
	for _, r := range all {
		limits := map[string]string{}
		for name, q := range r.Limits {
			limits[string(name)] = q.String()
		}
		entries = append(entries, strconv.Itoa(int(r.NumaNode))+":"+join(limits, "="))
	}
	return strings.Join(entries, nodeSeparator)
}
