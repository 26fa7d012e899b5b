package podspec

import (
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// Priorities that a pod has by the names of the two priority classes that are
// always there. A node without an API server knows no others.
const (
	SystemCriticalPriority int32 = 2_000_000_000
	systemNodeCritical     int32 = SystemCriticalPriority + 1000
)

// DefaultGracePeriod is what a pod that names none has to end by itself.
const DefaultGracePeriod = 30 * time.Second

// FullName returns name_namespace: what is unique among the pods of a node at
// any one time, and where pods with different UIDs meet.
func FullName(pod *corev1.Pod) string { return pod.Name + "_" + pod.Namespace }

// IsStatic reports whether the pod is this node's alone: no API server knows it.
// Its source says so, by MarkStatic; without its word the source's name does, as the
// kubelet has it: any but "api".
func IsStatic(pod *corev1.Pod) bool {
	if static, said := pod.Annotations[AnnotationStatic]; said {
		return static == "true"
	}
	source, ok := pod.Annotations[AnnotationSource]
	return ok && source != SourceAPI
}

// IsMirror reports whether the pod is the image of a static pod in an API
// server. It is never run.
func IsMirror(pod *corev1.Pod) bool {
	_, ok := pod.Annotations[AnnotationMirror]
	return ok
}

// IsCritical reports whether the pod is admitted under pressure and evicted
// last: static and mirror pods, and those of a system priority.
func IsCritical(pod *corev1.Pod) bool {
	return IsStatic(pod) || IsMirror(pod) || Priority(pod) >= SystemCriticalPriority
}

// Priority returns the pod's priority, which is that of its class where only
// the name of a system class is given, and 0 otherwise.
func Priority(pod *corev1.Pod) int32 {
	switch {
	case pod.Spec.Priority != nil:
		return *pod.Spec.Priority
	case pod.Spec.PriorityClassName == "system-node-critical":
		return systemNodeCritical
	case pod.Spec.PriorityClassName == "system-cluster-critical":
		return SystemCriticalPriority
	}
	return 0
}

// IsHostNetwork reports whether the pod shares the node's network.
func IsHostNetwork(pod *corev1.Pod) bool { return pod.Spec.HostNetwork }

// UsesHostUsers reports whether the pod's user ids are the node's: it has no
// user namespace of its own.
func UsesHostUsers(pod *corev1.Pod) bool {
	return pod.Spec.HostUsers == nil || *pod.Spec.HostUsers
}

// GracePeriod returns how long the pod may take to end: what its deletion said,
// else what its spec says. It is never negative.
func GracePeriod(pod *corev1.Pod) time.Duration {
	seconds := pod.Spec.TerminationGracePeriodSeconds
	if pod.DeletionTimestamp != nil && pod.DeletionGracePeriodSeconds != nil {
		seconds = pod.DeletionGracePeriodSeconds
	}
	if seconds == nil {
		return DefaultGracePeriod
	}
	return Seconds(*seconds)
}

// Seconds turns a count of seconds from a pod's spec into a duration between 0
// and the longest there is, without overflow.
func Seconds(n int64) time.Duration {
	const most = int64(1<<63-1) / int64(time.Second)
	return time.Duration(min(max(n, 0), most)) * time.Second
}

// IsSidecar reports whether an init container of a pod runs beside its regular
// containers instead of before them.
func IsSidecar(c *corev1.Container) bool {
	return c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways
}

// IsPrivileged reports whether a container with that security context is privileged. nil is not.
func IsPrivileged(sc *corev1.SecurityContext) bool {
	return sc != nil && sc.Privileged != nil && *sc.Privileged
}

// Containers calls yield for each container of the pod, in the order init,
// regular, ephemeral, until it returns false. Ephemeral containers are handed
// over as a view: all their fields but the target are a container's.
func Containers(pod *corev1.Pod) func(yield func(*corev1.Container) bool) {
	return func(yield func(*corev1.Container) bool) {
		for i := range pod.Spec.InitContainers {
			if !yield(&pod.Spec.InitContainers[i]) {
				return
			}
		}
		for i := range pod.Spec.Containers {
			if !yield(&pod.Spec.Containers[i]) {
				return
			}
		}
		for i := range pod.Spec.EphemeralContainers {
			if !yield((*corev1.Container)(&pod.Spec.EphemeralContainers[i].EphemeralContainerCommon)) {
				return
			}
		}
	}
}

// HostPorts returns the ports of the node that the pod's containers and
// sidecars ask for.
func HostPorts(pod *corev1.Pod) []corev1.ContainerPort {
	var ports []corev1.ContainerPort
	for i := range pod.Spec.InitContainers {
		if c := &pod.Spec.InitContainers[i]; IsSidecar(c) {
			ports = appendHostPorts(ports, c.Ports)
		}
	}
	for i := range pod.Spec.Containers {
		ports = appendHostPorts(ports, pod.Spec.Containers[i].Ports)
	}
	return ports
}

func appendHostPorts(to, from []corev1.ContainerPort) []corev1.ContainerPort {
	for _, p := range from {
		if p.HostPort > 0 {
			to = append(to, p)
		}
	}
	return to
}

// hostPortKey is the same for two ports that are written as the same one.
func hostPortKey(p *corev1.ContainerPort) string {
	return string(p.Protocol) + "/" + p.HostIP + "/" + strconv.Itoa(int(p.HostPort))
}
