package admission

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/sublet-dev/agent/podspec"
)

// checkResources checks the number of pods and then each resource that the pod
// requests. The result contains all insufficient resources, in the kubelet's order.
func (a *Admitter) checkResources(pod *corev1.Pod, others []*corev1.Pod) podspec.AdmitResult {
	var requests corev1.ResourceList
	if a.cfg.Allocatable != nil || a.cfg.Devices != nil {
		requests = podspec.Requests(pod)
	}
	if a.cfg.MaxPods == 0 && len(requests) == 0 {
		return podspec.Admitted()
	}
	total := a.allocatable()
	a.totals.mu.Lock()
	defer a.totals.mu.Unlock()
	a.totals.update(others)
	var short []shortage
	if n := a.totals.count(pod); a.cfg.MaxPods > 0 && n >= a.cfg.MaxPods {
		short = append(short, shortage{corev1.ResourcePods, 1, int64(n), int64(a.cfg.MaxPods)})
	}
	for _, name := range slices.SortedFunc(maps.Keys(requests), compareNames) {
		request, allocatable := requests[name], total[name]
		if !checked(pod, name, total) {
			continue
		}
		requested, capacity := amount(name, request), amount(name, allocatable)
		used := a.totals.used(pod, name)
		if requested > capacity-min(used, capacity) {
			short = append(short, shortage{name, requested, used, capacity})
		}
	}
	return insufficient(short)
}

// compareNames orders resources as a kubelet reports them. It has no order for those that are not ranked.
func compareNames(a, b corev1.ResourceName) int {
	ranked := [...]corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage}
	rank := func(name corev1.ResourceName) int {
		if i := slices.Index(ranked[:], name); i >= 0 {
			return i
		}
		return len(ranked)
	}
	return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(a, b))
}

// shortage is an insufficient resource, in the units of amount.
type shortage struct {
	name                      corev1.ResourceName
	requested, used, capacity int64
}

// insufficient returns the rejection for these resources, or Admitted if there are
// none. Reason and message are the kubelet's for the first of them.
func insufficient(short []shortage) podspec.AdmitResult {
	if len(short) == 0 {
		return podspec.Admitted()
	}
	first := short[0]
	v := podspec.Rejected(ReasonOutOfPrefix+string(first.name), fmt.Sprintf("Node didn't have enough resource: %s, requested: %d, used: %d, capacity: %d",
		first.name, first.requested, first.used, first.capacity))
	for _, s := range short {
		v.Insufficient = append(v.Insufficient, podspec.InsufficientResource{
			Name: s.name, Requested: quantity(s.name, s.requested), Used: quantity(s.name, s.used), Capacity: quantity(s.name, s.capacity),
		})
	}
	return v
}

// allocatable returns what is available to pods at present.
func (a *Admitter) allocatable() corev1.ResourceList {
	if a.cfg.Devices == nil {
		return a.cfg.Allocatable
	}
	total := maps.Clone(a.cfg.Allocatable)
	if total == nil {
		total = corev1.ResourceList{}
	}
	maps.Copy(total, a.cfg.Devices())
	return total
}

// checked reports whether a resource is checked. If what is allocatable does not contain it,
// huge pages count as missing, other native resources are ignored, and extended
// resources count as missing for static pods only: those of other pods were checked
// by the scheduler. So were those that it has made a claim for.
func checked(pod *corev1.Pod, name corev1.ResourceName, allocatable corev1.ResourceList) bool {
	for c := range podspec.Containers(pod) {
		if podspec.IsFromClaim(pod, c.Name, name) {
			return false
		}
	}
	if _, known := allocatable[name]; known {
		return true
	}
	if podspec.IsHugePages(name) {
		return true
	}
	return strings.Contains(string(name), "/") && podspec.IsStatic(pod)
}

// amount returns a quantity as an integer: millicores for cpu. It is the largest one if the quantity
// is larger, for which a Quantity has none.
func amount(name corev1.ResourceName, q resource.Quantity) int64 {
	most, value := int64(math.MaxInt64), q.Value
	if name == corev1.ResourceCPU {
		most, value = math.MaxInt64/1000, q.MilliValue
	}
	if q.CmpInt64(most) > 0 {
		return math.MaxInt64
	}
	return value()
}

// quantity is the inverse of amount.
func quantity(name corev1.ResourceName, amount int64) resource.Quantity {
	switch {
	case name == corev1.ResourceCPU:
		return *resource.NewMilliQuantity(amount, resource.DecimalSI)
	case name == corev1.ResourcePods, strings.Contains(string(name), "/"):
		return *resource.NewQuantity(amount, resource.DecimalSI)
	}
	return *resource.NewQuantity(amount, resource.BinarySI)
}
