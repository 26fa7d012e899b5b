package admission

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/sublet-dev/agent/podspec"
)

// checkResources checks the number of pods, then each resource that the pod requests.
func (a *Admitter) checkResources(pod *corev1.Pod, others []*corev1.Pod) podspec.AdmitResult {
	var requests corev1.ResourceList
	if a.cfg.Allocatable != nil {
		requests = podspec.Requests(pod)
	}
	if a.cfg.MaxPods == 0 && len(requests) == 0 {
		return podspec.Admitted()
	}
	a.ledger.mu.Lock()
	defer a.ledger.mu.Unlock()
	a.ledger.follow(others)
	var short []shortage
	if n := a.ledger.beside(pod); a.cfg.MaxPods > 0 && n >= a.cfg.MaxPods {
		short = append(short, shortage{corev1.ResourcePods, 1, int64(n), int64(a.cfg.MaxPods)})
	}
	for _, name := range slices.Sorted(maps.Keys(requests)) {
		want, there := requests[name], a.cfg.Allocatable[name]
		if !a.checked(pod, name) {
			continue
		}
		requested, capacity := amount(name, want), amount(name, there)
		used := a.ledger.used(pod, name)
		if requested > capacity-min(used, capacity) {
			short = append(short, shortage{name, requested, used, capacity})
		}
	}
	return insufficient(short)
}

// shortage is a resource that there is too little of, as amount counts it.
type shortage struct {
	name                      corev1.ResourceName
	requested, used, capacity int64
}

// insufficient words a lack the way the kubelet does, by the first resource that is short:
// cpu in thousandths.
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

// checked reports whether a resource is counted at all. Huge pages that the
// node does not name it does not have. A device that it does not name may be
// one of the cluster's, if a scheduler sent the pod here, and is missing if the
// pod is static.
func (a *Admitter) checked(pod *corev1.Pod, name corev1.ResourceName) bool {
	if _, known := a.cfg.Allocatable[name]; known {
		return true
	}
	if strings.HasPrefix(string(name), corev1.ResourceHugePagesPrefix) {
		return true
	}
	return strings.Contains(string(name), "/") && podspec.IsStatic(pod)
}

// amount is a quantity as it is counted here: cpu in thousandths.
func amount(name corev1.ResourceName, q resource.Quantity) int64 {
	if name == corev1.ResourceCPU {
		return q.MilliValue()
	}
	return q.Value()
}

// quantity turns an amount back.
func quantity(name corev1.ResourceName, amount int64) resource.Quantity {
	switch {
	case name == corev1.ResourceCPU:
		return *resource.NewMilliQuantity(amount, resource.DecimalSI)
	case name == corev1.ResourcePods, strings.Contains(string(name), "/"):
		return *resource.NewQuantity(amount, resource.DecimalSI)
	}
	return *resource.NewQuantity(amount, resource.BinarySI)
}
