package podspec

import (
	"errors"
	"fmt"
	"math"
	"os"

	corev1 "k8s.io/api/core/v1"
)

// MemoryQoS says how the kernel treats the memory of pods below their limits, as the feature
// MemoryQoS of a kubelet (KEP-2570). It needs cgroup v2. The zero value does nothing.
type MemoryQoS struct {
	// ThrottlingFactor slows down a container that uses much more memory than it requests (memory.high),
	// so that it can be reclaimed before the limit is met: at this part of the way from the request to the
	// limit or, without one, to what is allocatable. The kubelet's memoryThrottlingFactor. Default: 0, no container is.
	ThrottlingFactor float64
	// ReserveRequests keeps the memory that pods request from being reclaimed for others: that of Guaranteed pods
	// in any case (memory.min), and that of Burstable pods while the kernel finds other memory (memory.low). The kubelet's
	// memoryReservationPolicy TieredReservation.
	ReserveRequests bool
}

// Check returns an error if the factor is not from 0 to 1.
func (m MemoryQoS) Check() error {
	if m.ThrottlingFactor < 0 || m.ThrottlingFactor > 1 || math.IsNaN(m.ThrottlingFactor) {
		return errors.New("MemoryQoS.ThrottlingFactor must be from 0 to 1, not " + fmt.Sprint(m.ThrottlingFactor))
	}
	return nil
}

// High returns the usage in bytes at which memory is throttled, a multiple of the page size, for a
// request and what may be used at most. It is 0 if the memory is not throttled: where there is nothing
// between both.
func (m MemoryQoS) High(request, limit int64) int64 {
	if m.ThrottlingFactor <= 0 || limit <= 0 || request < 0 {
		return 0
	}
	page := int64(os.Getpagesize())
	high := int64(math.Floor((float64(request)+float64(limit-request)*m.ThrottlingFactor)/float64(page))) * page
	if high <= request {
		return 0
	}
	return high
}

// OfPod returns the settings of the cgroup of a pod with that request and limit on memory, in bytes, of which memory.high is 0 if
// the pod has no resources of its own: then the memory of its containers is throttled.
func (m MemoryQoS) OfPod(pod *corev1.Pod, request, limit int64) (minimum, low, high int64) {
	minimum, low = m.Reserved(QOS(pod), request)
	if own := pod.Spec.Resources; own != nil && len(own.Requests)+len(own.Limits) > 0 {
		high = m.High(request, limit)
	}
	return minimum, low, high
}

// Reserved returns how many bytes of a request of a pod of a class are kept from being reclaimed, as
// memory.min and memory.low.
func (m MemoryQoS) Reserved(class corev1.PodQOSClass, request int64) (minimum, low int64) {
	switch {
	case !m.ReserveRequests || request < 0:
		return 0, 0
	case class == corev1.PodQOSGuaranteed:
		return request, 0
	default:
		return 0, request
	}
}
