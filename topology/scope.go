package topology

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/podspec"
)

// Scope says which resources are to be close to each other.
type Scope string

// The scopes, by the names that the kubelet has for them.
const (
	ContainerScope Scope = "container" // those of each container
	PodScope       Scope = "pod"       // those of all containers of a pod
)

// ParseScope returns the scope of that name.
func ParseScope(name string) (Scope, error) {
	if s := Scope(name); s == ContainerScope || s == PodScope {
		return s, nil
	}
	return "", fmt.Errorf("invalid scope %q: must be container or pod", name)
}

// PodProvider is a Provider that a Manager with PodScope can use.
type PodProvider interface {
	Provider
	// PodHints returns the hints for what the containers of the pod request together, a list
	// for each resource; see MostTogether and Merge. A pod that has the resource already gets the
	// hint for what it has.
	PodHints(pod *corev1.Pod) [][]Hint
}

// MostTogether returns how much the containers of a pod need at any one time, where of is what one needs:
// that of all regular containers and sidecars, or that of an init container and the sidecars before it.
func MostTogether(pod *corev1.Pod, of func(*corev1.Container) int64) int64 {
	var sidecars, most int64
	for i := range pod.Spec.InitContainers {
		c := &pod.Spec.InitContainers[i]
		n := sidecars + of(c)
		most = max(most, n)
		if podspec.IsSidecar(c) {
			sidecars = n
		}
	}
	regular := sidecars
	for i := range pod.Spec.Containers {
		regular += of(&pod.Spec.Containers[i])
	}
	return max(most, regular)
}
