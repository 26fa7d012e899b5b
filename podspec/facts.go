package podspec

import (
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// SystemCriticalPriority is the lowest priority of a critical pod, and the value of the
// priority class system-cluster-critical.
const (
	SystemCriticalPriority int32 = 2_000_000_000
	systemNodeCritical     int32 = SystemCriticalPriority + 1000
)

// DefaultGracePeriod is the default of spec.terminationGracePeriodSeconds.
const DefaultGracePeriod = 30 * time.Second

// FullName returns name_namespace, as the kubelet's GetPodFullName. A node runs one pod with
// a full name at a time; a recreated pod has the same full name and another UID.
func FullName(pod *corev1.Pod) string { return pod.Name + "_" + pod.Namespace }

// IsStatic reports whether the pod exists on this node only, not in an API server. MarkStatic
// decides that for a pod. Otherwise the rule is the kubelet's: pods of all sources except
// SourceAPI are static.
func IsStatic(pod *corev1.Pod) bool {
	if static, said := pod.Annotations[AnnotationStatic]; said {
		return static == "true"
	}
	source, ok := pod.Annotations[AnnotationSource]
	return ok && source != SourceAPI
}

// IsMirror reports whether the pod represents a static pod in an API server. It is never run.
func IsMirror(pod *corev1.Pod) bool {
	_, ok := pod.Annotations[AnnotationMirror]
	return ok
}

// IsCritical reports whether the pod is admitted under pressure, and not evicted by default:
// static and mirror pods, and pods with a priority of at least SystemCriticalPriority.
func IsCritical(pod *corev1.Pod) bool {
	return IsStatic(pod) || IsMirror(pod) || Priority(pod) >= SystemCriticalPriority
}

// Priority returns spec.priority. If it is not set, it is that of the class if
// spec.priorityClassName is one of the two system classes, and 0 otherwise.
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

// Preempts reports whether a critical pod may be admitted at the cost of another pod: of one
// that is not critical, or whose priority is lower, if both have a priority. The rule is the
// kubelet's.
func Preempts(pod, other *corev1.Pod) bool {
	if !IsCritical(pod) {
		return false
	}
	return !IsCritical(other) || hasPriority(pod) && hasPriority(other) && Priority(pod) > Priority(other)
}

// hasPriority reports whether Priority is more than a default.
func hasPriority(pod *corev1.Pod) bool {
	return pod.Spec.Priority != nil || Priority(pod) != 0
}

// Replaces reports whether a name that two pods have means pod, and not other: the one that is not
// terminating, and of these the newer one.
func Replaces(pod, other *corev1.Pod) bool {
	if isTerminating := pod.DeletionTimestamp != nil; isTerminating != (other.DeletionTimestamp != nil) {
		return !isTerminating
	}
	newer, older := StartTime(pod), StartTime(other)
	return newer.After(older.Time)
}

// StartTime returns when the node knew of the pod, or else when it was created.
func StartTime(pod *corev1.Pod) metav1.Time {
	if pod.Status.StartTime != nil {
		return *pod.Status.StartTime
	}
	return pod.CreationTimestamp
}

// RestartsForResize reports whether a container is restarted when its cpu or memory is resized.
func RestartsForResize(c *corev1.Container, name corev1.ResourceName) bool {
	for _, policy := range c.ResizePolicy {
		if policy.ResourceName == name {
			return policy.RestartPolicy == corev1.RestartContainer
		}
	}
	return false
}

// IsHostNetwork reports whether the pod shares the node's network.
func IsHostNetwork(pod *corev1.Pod) bool { return pod.Spec.HostNetwork }

// UsesHostUsers reports whether the user ids of the pod are those of the node: it has no
// user namespace of its own (KEP-127).
func UsesHostUsers(pod *corev1.Pod) bool {
	return pod.Spec.HostUsers == nil || *pod.Spec.HostUsers
}

// GracePeriod returns the grace period of a pod: metadata.deletionGracePeriodSeconds, else
// spec.terminationGracePeriodSeconds, else DefaultGracePeriod. It is never negative.
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

// Seconds converts a number of seconds in a spec to a duration, without overflow: a negative
// number gives 0, and one that is too large the longest duration.
func Seconds(n int64) time.Duration {
	const most = int64(1<<63-1) / int64(time.Second)
	return time.Duration(min(max(n, 0), most)) * time.Second
}

// IsSidecar reports whether an init container is a sidecar (KEP-753): its restartPolicy is
// Always, and it runs beside the regular containers instead of before them.
func IsSidecar(c *corev1.Container) bool {
	return c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways
}

// IsPrivileged reports whether a container with that security context is privileged. sc may
// be nil.
func IsPrivileged(sc *corev1.SecurityContext) bool {
	return sc != nil && sc.Privileged != nil && *sc.Privileged
}

// Containers iterates over all containers of the pod in the order init, regular, ephemeral.
// An ephemeral container is returned without its target, as a pointer into the pod.
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

// HostPorts returns the host ports of the regular containers and sidecars of a pod.
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

// hostPortKey returns the same text for two entries that mean the same port.
func hostPortKey(p *corev1.ContainerPort) string {
	return string(p.Protocol) + "/" + p.HostIP + "/" + strconv.Itoa(int(p.HostPort))
}
