package podsync

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/runtime"
)

// markMemoryRequests returns the observed pod in which running containers have the memory requests that they were given,
// if their spec has others by now: no runtime reports them, so that a resize of a request alone would seem to be done.
// observed is not changed.
func (r *resizeState) markMemoryRequests(pod *corev1.Pod, observed runtime.Pod) runtime.Pod {
	if r.pod != nil && r.pod != pod {
		for i := range observed.Containers {
			c := &observed.Containers[i]
			if before := runtime.ContainerSpec(r.pod, c.Name); before != nil && c.State == runtime.Running {
				r.keepMemoryRequest(pod, c.Name, c.ID, before.Resources.Requests[corev1.ResourceMemory])
			}
		}
	}
	if len(r.memoryRequests) == 0 {
		r.memoryRequests = nil
		return observed
	}
	kept := map[string]resource.Quantity{}
	observed.Containers = slices.Clone(observed.Containers)
	for i := range observed.Containers {
		c := &observed.Containers[i]
		given, ok := r.memoryRequests[c.ID]
		if !ok || c.State != runtime.Running || c.Resources == nil || c.Resources.MemoryRequest != nil {
			continue
		}
		marked := *c.Resources
		marked.MemoryRequest = &given
		spec := runtime.ContainerSpec(pod, c.Name)
		if kind, ok := runtime.ContainerTypeOf(pod, c.Name); ok && runtime.NeedsResize(pod, spec, kind, &marked) {
			kept[c.ID], c.Resources = given, &marked
		}
	}
	r.memoryRequests = kept
	return observed
}

// restoreMemoryRequests keeps the requests that containers have by the status that an earlier process has saved.
func (r *resizeState) restoreMemoryRequests(pod *corev1.Pod, status *corev1.PodStatus) {
	for c := range podspec.ContainerStatuses(status) {
		if _, id, ok := strings.Cut(c.ContainerID, "://"); ok && c.State.Running != nil && c.Resources != nil {
			r.keepMemoryRequest(pod, c.Name, id, c.Resources.Requests[corev1.ResourceMemory])
		}
	}
}

// keepMemoryRequest keeps the request that a container was given, if the spec has another one. What is kept already is
// older, and so what the container has.
func (r *resizeState) keepMemoryRequest(pod *corev1.Pod, container, id string, given resource.Quantity) {
	spec := runtime.ContainerSpec(pod, container)
	if _, ok := r.memoryRequests[id]; ok || spec == nil || given.Cmp(spec.Resources.Requests[corev1.ResourceMemory]) == 0 {
		return
	}
	if r.memoryRequests == nil {
		r.memoryRequests = map[string]resource.Quantity{}
	}
	r.memoryRequests[id] = given
}

// forgetMemoryRequests drops those of containers that have been resized, and reports whether there are such. Nothing that is
// observed changes with them, so that the pod has to be synced once more without an event.
func (r *resizeState) forgetMemoryRequests(work []runtime.Action, failures map[string]runtime.Failure) (forgotten bool) {
	if _, failed := failures[""]; failed {
		return false // they may not have been tried
	}
	for _, a := range work {
		if _, failed := failures[a.Container]; failed || a.Type != runtime.UpdateResources {
			continue
		}
		if _, ok := r.memoryRequests[a.ID]; ok {
			delete(r.memoryRequests, a.ID)
			forgotten = true
		}
	}
	return forgotten
}
