package kubeletconfig

import (
	"k8s.io/kubelet/config/v1beta1"

	"github.com/sublet-dev/agent/podspec"
)

// earlierThrottlingFactor was the default of memoryThrottlingFactor, and may be set without the gate.
const earlierThrottlingFactor = 0.9

// memory checks what a kubelet checks: without the gate nothing is protected or throttled.
func (v *validator) memory() {
	off, factor := isOff(v.FeatureGates, gateMemoryQoS), v.MemoryThrottlingFactor
	v.fail(factor != nil && (*factor <= 0 || *factor > 1), "memoryThrottlingFactor: %v must be above 0, and at most 1", factorOf(v.KubeletConfiguration))
	v.fail(off && factor != nil && *factor != earlierThrottlingFactor, "memoryThrottlingFactor: needs featureGates[%s]; remove one of both", gateMemoryQoS)
	switch v.MemoryReservationPolicy {
	case v1beta1.NoneMemoryReservationPolicy:
	case v1beta1.TieredReservationMemoryReservationPolicy:
		v.fail(off, "memoryReservationPolicy: %s needs featureGates[%s]; remove one of both", v.MemoryReservationPolicy, gateMemoryQoS)
	default:
		v.fail(true, "memoryReservationPolicy: %q must be None or TieredReservation", v.MemoryReservationPolicy)
	}
}

func factorOf(k *v1beta1.KubeletConfiguration) float64 {
	if k.MemoryThrottlingFactor == nil {
		return 0
	}
	return *k.MemoryThrottlingFactor
}

func memoryQoS(k *v1beta1.KubeletConfiguration) podspec.MemoryQoS {
	if isOff(k.FeatureGates, gateMemoryQoS) {
		return podspec.MemoryQoS{}
	}
	return podspec.MemoryQoS{
		ThrottlingFactor: factorOf(k), ReserveRequests: k.MemoryReservationPolicy == v1beta1.TieredReservationMemoryReservationPolicy,
	}
}
