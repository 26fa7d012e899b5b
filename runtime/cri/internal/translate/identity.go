package translate

import (
	"encoding/json"
	"maps"
	"path"
	"strconv"

	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/runtime"
)

// sandboxLabels are the pod's own labels and the keys that identify it and its
// owner.
func sandboxLabels(pod *corev1.Pod, owner string) map[string]string {
	labels := make(map[string]string, len(pod.Labels)+4)
	maps.Copy(labels, pod.Labels)
	maps.Copy(labels, identity(pod, owner))
	return labels
}

func identity(pod *corev1.Pod, owner string) map[string]string {
	return map[string]string{
		runtime.LabelPodName: pod.Name, runtime.LabelPodNamespace: pod.Namespace, runtime.LabelPodUID: string(pod.UID),
		runtime.LabelOwner: owner,
	}
}

// sandboxAnnotations are the pod's own and how long it may take to end, so that
// an orphan can be ended as it asked.
func sandboxAnnotations(pod *corev1.Pod) map[string]string {
	a := make(map[string]string, len(pod.Annotations)+2)
	maps.Copy(a, pod.Annotations)
	graceAnnotations(pod, a)
	return a
}

func graceAnnotations(pod *corev1.Pod, a map[string]string) {
	if s := pod.Spec.TerminationGracePeriodSeconds; s != nil {
		a[runtime.AnnotationGracePeriod] = strconv.FormatInt(*s, 10)
	}
	if s := pod.DeletionGracePeriodSeconds; s != nil {
		a[runtime.AnnotationDeletionGracePeriod] = strconv.FormatInt(*s, 10)
	}
}

func containerLabels(pod *corev1.Pod, name, owner string) map[string]string {
	labels := identity(pod, owner)
	labels[runtime.LabelContainerName] = name
	return labels
}

// containerAnnotations are what an agent that starts again needs to know of the
// container, in the kubelet's keys where it has one.
func containerAnnotations(pod *corev1.Pod, in ContainerInput, bootID string) map[string]string {
	ct, a, attempt := in.Spec, in.Action, in.Attempt
	out := maps.Clone(in.Injection.Annotations)
	if out == nil {
		out = map[string]string{}
	}
	maps.Copy(out, map[string]string{
		runtime.AnnotationHash:                     runtime.HashWithInjection(ct, in.Injection),
		runtime.AnnotationImage:                    ct.Image,
		runtime.AnnotationRestartCount:             strconv.FormatUint(uint64(attempt), 10),
		runtime.AnnotationTerminationMessagePath:   ct.TerminationMessagePath,
		runtime.AnnotationTerminationMessagePolicy: string(ct.TerminationMessagePolicy),
		runtime.AnnotationContainerType:            a.ContainerType.String(),
	})
	if a.BackOffStep > 0 {
		out[runtime.AnnotationBackOffStep] = strconv.Itoa(a.BackOffStep)
		out[runtime.AnnotationBackOffResources] = runtime.HashResources(ct)
		if bootID != "" {
			out[runtime.AnnotationBackOffBoot] = bootID
		}
	}
	if a.RestartGeneration > 0 {
		out[runtime.AnnotationRestartGeneration] = strconv.FormatUint(uint64(a.RestartGeneration), 10)
	}
	if isRestartedForMemory(ct, a.ContainerType) {
		out[runtime.AnnotationMemoryRequest] = strconv.FormatInt(memoryRequest(ct), 10)
	}
	graceAnnotations(pod, out)
	if ct.Lifecycle != nil && ct.Lifecycle.PreStop != nil {
		if text, err := json.Marshal(ct.Lifecycle.PreStop); err == nil {
			out[runtime.AnnotationPreStop] = string(text)
		}
	}
	if len(ct.Ports) > 0 {
		if text, err := json.Marshal(ct.Ports); err == nil {
			out[runtime.AnnotationPorts] = string(text)
		}
	}
	return out
}

// isRestartedForMemory reports whether a container is restarted when its memory is resized, so that
// the request that it was made with is the present one. No runtime reports the request.
func isRestartedForMemory(ct *corev1.Container, kind runtime.ContainerType) bool {
	return (kind == runtime.Regular || kind == runtime.Sidecar) && podspec.RestartsForResize(ct, corev1.ResourceMemory)
}

// logPath is where a container's log goes, below the pod's log directory.
func logPath(container string, attempt uint32) string {
	return path.Join(container, strconv.FormatUint(uint64(attempt), 10)+".log")
}
