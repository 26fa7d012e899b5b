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

// Keys of the annotations of the event Evicted, as in the kubelet: programs read from them which resource
// was low and who used more of it than requested.
const (
	annotationStarved        = "starved_resource"
	annotationPod            = "offending_pod"
	annotationPodUsage       = "offending_pod_usage"
	annotationContainers     = "offending_containers"
	annotationContainerUsage = "offending_containers_usage"
)

// message returns the status message of an evicted pod, in the wording of the kubelet:
// the resource, the threshold, the observed value, the usage of a pod that requests memory
// itself, and the containers that use more than they request or, for pressure, how long the
// pod's own tasks waited. annotations are those of the event.
func message(m metThreshold, c Candidate, u *runtime.NodeUsage) (text string, annotations map[string]string) {
	f, _ := infoFor(m.Signal)
	annotations = map[string]string{annotationStarved: string(f.resource), annotationContainers: "", annotationContainerUsage: ""}
	var b strings.Builder
	fmt.Fprintf(&b, "The node was low on resource: %s. ", f.resource)
	if f.pressure {
		fmt.Fprintf(&b, "Threshold pressure: %s, pressure: %s. ", m.Value, m.observation)
	} else {
		fmt.Fprintf(&b, "Threshold quantity: %s, available: %s. ", amount(f.resource, m.Value.Of(m.observation.Capacity)), m.observation)
	}
	if c.Stalled {
		fmt.Fprintf(&b, "The pod %s. ", c.usageText())
		return b.String(), annotations
	}
	for i := range u.Pods {
		if u.Pods[i].UID != c.Pod.UID {
			continue
		}
		if used := writePodUsage(&b, f, c.Pod, &u.Pods[i]); used != "" {
			annotations[annotationPod], annotations[annotationPodUsage] = c.Pod.Name, used
		}
		var names, usage []string
		for j := range u.Pods[i].Containers {
			container := &u.Pods[i].Containers[j]
			if used := writeExcess(&b, m.Signal, f, c.Pod, container, layoutOf(u)); used != "" {
				names, usage = append(names, container.Name), append(usage, used)
			}
		}
		annotations[annotationContainers], annotations[annotationContainerUsage] = strings.Join(names, ","), strings.Join(usage, ",")
	}
	return b.String(), annotations
}

// writePodUsage appends a sentence about the memory of a pod with a request at pod level, and returns
// that memory. It does nothing without one.
func writePodUsage(b *strings.Builder, f signalInfo, pod *corev1.Pod, u *runtime.PodUsage) (used string) {
	if f.resource != corev1.ResourceMemory || pod.Spec.Resources == nil {
		return ""
	}
	request, ok := pod.Spec.Resources.Requests[corev1.ResourceMemory]
	n, known := podMemory(u, time.Time{})
	if !ok || !known {
		return ""
	}
	used = amount(f.resource, n)
	fmt.Fprintf(b, "Pod %s was using %s, request is %s, has larger consumption of %s. ", pod.Name, used, request.String(), f.resource)
	return used
}

// writeExcess appends a sentence for a container that uses more than it requests, and returns what
// it uses, or else "". Ephemeral containers can request nothing.
func writeExcess(b *strings.Builder, s Signal, f signalInfo, pod *corev1.Pod, u *runtime.ContainerUsage, l layout) string {
	var used uint64
	switch f.resource {
	case corev1.ResourceMemory:
		used = u.Memory.WorkingSet
	case corev1.ResourceEphemeralStorage:
		used = podDisk(s, &runtime.PodUsage{Containers: []runtime.ContainerUsage{*u}}, l, time.Time{}).Bytes
	default:
		return "" // cannot be requested
	}
	if kind, ok := runtime.ContainerTypeOf(pod, u.Name); !ok || kind == runtime.Ephemeral {
		return ""
	}
	request := runtime.ContainerSpec(pod, u.Name).Resources.Requests[f.resource]
	if used <= uint64(max(request.Value(), 0)) {
		return ""
	}
	text := amount(f.resource, used)
	fmt.Fprintf(b, "Container %s was using %s, request is %s, has larger consumption of %s. ", u.Name, text, request.String(), f.resource)
	return text
}
