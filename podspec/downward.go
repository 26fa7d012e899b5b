package podspec

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"
)

// FieldValue returns the value of a fieldRef with the given path, and whether the downward
// API has such a field. Status fields such as status.podIP come from pod.Status.
func FieldValue(pod *corev1.Pod, path string) (string, bool) {
	if which, key, ok := subscript(path); ok {
		switch which {
		case "metadata.labels":
			return pod.Labels[key], true
		case "metadata.annotations":
			return pod.Annotations[key], true
		}
		return "", false
	}
	switch path {
	case "metadata.name":
		return pod.Name, true
	case "metadata.namespace":
		return pod.Namespace, true
	case "metadata.uid":
		return string(pod.UID), true
	case "metadata.labels":
		return formatMap(pod.Labels), true
	case "metadata.annotations":
		return formatMap(pod.Annotations), true
	case "spec.nodeName", "spec.host": // its name in an older API
		return pod.Spec.NodeName, true
	case "spec.serviceAccountName":
		return pod.Spec.ServiceAccountName, true
	case "status.hostIP":
		return pod.Status.HostIP, true
	case "status.podIP":
		return pod.Status.PodIP, true
	case "status.hostIPs":
		return join(pod.Status.HostIPs, func(ip corev1.HostIP) string { return ip.IP }), true
	case "status.podIPs":
		return join(pod.Status.PodIPs, func(ip corev1.PodIP) string { return ip.IP }), true
	}
	return "", false
}

func join[T any](list []T, text func(T) string) string {
	var all []string
	for _, e := range list {
		all = append(all, text(e))
	}
	return strings.Join(all, ",")
}

// formatMap returns labels in the form of the downward API: a line key="value" for each,
// sorted, with Go's escapes, and without a newline at the end.
func formatMap(m map[string]string) string {
	var lines []string
	for _, key := range slices.Sorted(maps.Keys(m)) {
		lines = append(lines, key+"="+strconv.Quote(m[key]))
	}
	return strings.Join(lines, "\n")
}

// subscript splits a path such as metadata.labels['key'].
func subscript(path string) (which, key string, ok bool) {
	path, ok = strings.CutSuffix(path, "']")
	if !ok {
		return "", "", false
	}
	return strings.Cut(path, "['")
}

// isFieldPath reports whether a fieldRef may have the path. In an environment only fields
// with a single value may be used, in a volume only fields of metadata.
func isFieldPath(path string, env bool) bool {
	switch which, key, ok := subscript(path); {
	case !ok:
	case which == "metadata.labels":
		return len(validation.IsQualifiedName(key)) == 0
	case which == "metadata.annotations": // their keys may have capitals before the slash
		return len(validation.IsQualifiedName(strings.ToLower(key))) == 0
	default:
		return false
	}
	switch path {
	case "metadata.name", "metadata.namespace", "metadata.uid":
		return true
	case "metadata.labels", "metadata.annotations":
		return !env
	}
	_, ok := FieldValue(&corev1.Pod{}, path)
	return ok && env
}

func isResourcePath(path, name string) bool {
	return (path == "limits."+name || path == "requests."+name) &&
		(name == "cpu" || name == "memory" || name == "ephemeral-storage" || IsHugePages(corev1.ResourceName(name)))
}

// divisible reports whether the divisor is 0, which means 1, or a unit that the API allows
// for the resource.
func divisible(name corev1.ResourceName, divisor resource.Quantity) bool {
	switch divisor.String() {
	case "0", "1":
		return true
	case "1m":
		return name == corev1.ResourceCPU
	case "1k", "1M", "1G", "1T", "1P", "1E", "1Ki", "1Mi", "1Gi", "1Ti", "1Pi", "1Ei":
		return name != corev1.ResourceCPU
	}
	return false
}

// ResourceValue returns the value of a resourceFieldRef: the amount in units of the divisor,
// rounded up. It refers to container c unless ref names another one of the pod. A limit that
// the container does not have is the pod-level limit, or else that of the node in allocatable;
// of huge pages it is 0.
func ResourceValue(pod *corev1.Pod, c *corev1.Container, ref *corev1.ResourceFieldSelector, allocatable corev1.ResourceList) (string, error) {
	if ref.ContainerName != "" {
		if c = containerNamed(pod, ref.ContainerName); c == nil {
			return "", fmt.Errorf("resource %s: container %q not found", ref.Resource, ref.ContainerName)
		}
	}
	of, name, _ := strings.Cut(ref.Resource, ".")
	if c == nil || !isResourcePath(ref.Resource, name) {
		return "", fmt.Errorf("resource %s cannot be used in a resourceFieldRef", ref.Resource)
	}
	key := corev1.ResourceName(name)
	amount := c.Resources.Requests[key]
	if of == "limits" {
		amount = c.Resources.Limits[key]
		if amount.IsZero() && !IsHugePages(key) {
			amount = podLevel(pod, limitsOf)[key]
			if amount.IsZero() {
				amount = allocatable[key]
			}
		}
	}
	return inUnits(amount, ref.Divisor), nil
}

func containerNamed(pod *corev1.Pod, name string) *corev1.Container {
	for c := range Containers(pod) {
		if c.Name == name {
			return c
		}
	}
	return nil
}

// inUnits divides thousandths, which is exact for all units of the API, if they fit into
// 64 bits, and whole numbers otherwise.
func inUnits(amount, unit resource.Quantity) string {
	if unit.IsZero() {
		unit = *resource.NewQuantity(1, resource.DecimalSI)
	}
	a, u := amount.Value(), unit.Value()
	if a <= math.MaxInt64/1000 && u <= math.MaxInt64/1000 {
		a, u = amount.MilliValue(), unit.MilliValue()
	}
	n := a / u
	if a%u > 0 {
		n++
	}
	return strconv.FormatInt(n, 10)
}
