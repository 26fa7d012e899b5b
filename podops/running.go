package podops

import (
	"context"

	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/runtime"
)

// RunningPods returns the pods that the runtime runs as last observed, also those that are
// not desired any more, as a kubelet serves them at /runningpods/: each has its identity,
// and the names and images of the containers that run. It does not block, and its error is
// nil.
func (o *Operator) RunningPods(context.Context) ([]*corev1.Pod, error) {
	var all []*corev1.Pod
	for _, observed := range o.cfg.PodCache.Pods() {
		if pod := runningPod(&observed); pod != nil {
			all = append(all, pod)
		}
	}
	return all, nil
}

// runningPod returns what runs of a pod, or nil.
func runningPod(observed *runtime.Pod) *corev1.Pod {
	pod := &corev1.Pod{}
	pod.UID, pod.Namespace, pod.Name = observed.UID, observed.Namespace, observed.Name
	add := func(name, image string) {
		pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{Name: name, Image: image})
	}
	if o := observed.Object; o != nil {
		if o.Status.Phase != corev1.PodRunning {
			return nil
		}
		for i := range o.Spec.Containers {
			add(o.Spec.Containers[i].Name, o.Spec.Containers[i].Image)
		}
		return pod
	}
	for i := range observed.Containers {
		if c := &observed.Containers[i]; c.State == runtime.Running {
			add(c.Name, c.Image)
		}
	}
	if len(pod.Spec.Containers) == 0 && observed.ReadySandbox() == nil {
		return nil
	}
	return pod
}
