package eviction

import (
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/runtime"
)

// Reason is the status reason of evicted pods, and of pods rejected while the node is
// under pressure.
const Reason = "Evicted"

// message returns the status message of an evicted pod, in the wording of the kubelet:
// the resource, the threshold, the observed value, the usage of a pod that requests memory
// itself, and the containers that use more than they request or, for pressure, how long the
// pod's own tasks waited.
func message(m metThreshold, c Candidate, u *runtime.NodeUsage) string {
	f, _ := infoFor(m.Signal)
	var b strings.Builder
	fmt.Fprintf(&b, "The node was low on resource: %s. ", f.resource)
	if f.pressure {
		fmt.Fprintf(&b, "Threshold pressure: %s, pressure: %s. ", m.Value, m.observation)
	} else {
		fmt.Fprintf(&b, "Threshold quantity: %s, available: %s. ", amount(f.resource, m.Value.Of(m.observation.Capacity)), m.observation)
	}
	if c.Stalled {
		fmt.Fprintf(&b, "The pod %s. ", c.usageText())
		return b.String()
	}
	for i := range u.Pods {
		if u.Pods[i].UID != c.Pod.UID {
			continue
		}
		writePodUsage(&b, f, c.Pod, &u.Pods[i])
		for j := range u.Pods[i].Containers {
			writeExcess(&b, m.Signal, f, c.Pod, &u.Pods[i].Containers[j], layoutOf(u))
		}
	}
	return b.String()
}

// writePodUsage appends a sentence about the memory of a pod with a request at pod level.
func writePodUsage(b *strings.Builder, f signalInfo, pod *corev1.Pod, u *runtime.PodUsage) {
	if f.resource != corev1.ResourceMemory || pod.Spec.Resources == nil {
		return
	}
	request, ok := pod.Spec.Resources.Requests[corev1.ResourceMemory]
	if used, known := podMemory(u, time.Time{}); ok && known {
		fmt.Fprintf(b, "Pod %s was using %s, request is %s, has larger consumption of %s. ",
			pod.Name, amount(f.resource, used), request.String(), f.resource)
	}
}

// writeExcess appends a sentence for a container that uses more than it requests. Ephemeral
// containers can request nothing.
func writeExcess(b *strings.Builder, s Signal, f signalInfo, pod *corev1.Pod, u *runtime.ContainerUsage, l layout) {
	var used uint64
	switch f.resource {
	case corev1.ResourceMemory:
		used = u.Memory.WorkingSet
	case corev1.ResourceEphemeralStorage:
		used = podDisk(s, &runtime.PodUsage{Containers: []runtime.ContainerUsage{*u}}, l, time.Time{}).Bytes
	default:
		return // cannot be requested
	}
	if kind, ok := runtime.ContainerTypeOf(pod, u.Name); !ok || kind == runtime.Ephemeral {
		return
	}
	request := runtime.ContainerSpec(pod, u.Name).Resources.Requests[f.resource]
	if used <= uint64(max(request.Value(), 0)) {
		return
	}
	fmt.Fprintf(b, "Container %s was using %s, request is %s, has larger consumption of %s. ",
		u.Name, amount(f.resource, used), request.String(), f.resource)
}
