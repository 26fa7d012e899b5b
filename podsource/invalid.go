package podsource

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/internal/text"
	"github.com/sublet-dev/agent/podspec"
)

// AnnotationInvalid is what is wrong with a delivered pod that is invalid. A Mux removes
// it from all other pods. See InvalidReason.
const AnnotationInvalid = "sublet.dev/invalid"

// maxReason is the longest InvalidReason. It leaves room in an event.
const maxReason = maxMessage - 100

// InvalidReason returns what is wrong with a delivered pod, with the names of its fields,
// or "" for a valid one. An invalid pod must not be started. It is a pod with its own UID,
// is not static and was never valid in this process: someone waits for its status and, when
// it is deleted, for its end. It has only the metadata, the status and what of its
// containers is valid.
func InvalidReason(pod *corev1.Pod) string { return pod.Annotations[AnnotationInvalid] }

// reduced returns what of an invalid pod a node needs to reject it, to count it if it
// runs, and to end it. It returns nil if the pod cannot be identified. All that is
// returned is valid, so that no name becomes a path and no amount is too large to compare.
func reduced(pod *corev1.Pod, err error) *corev1.Pod {
	if pod.UID == "" {
		return nil
	}
	r := &corev1.Pod{ObjectMeta: pod.ObjectMeta, Status: pod.Status, Spec: corev1.PodSpec{
		NodeName: pod.Spec.NodeName, RestartPolicy: pod.Spec.RestartPolicy,
		Priority: pod.Spec.Priority, PriorityClassName: pod.Spec.PriorityClassName,
		TerminationGracePeriodSeconds: pod.Spec.TerminationGracePeriodSeconds,
		InitContainers:                reducedContainers(pod.Spec.InitContainers),
		Containers:                    reducedContainers(pod.Spec.Containers),
	}}
	podspec.Default(r)
	if podspec.Validate(r) != nil {
		r.Labels, r.Annotations = nil, nil
		r.Spec = corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}}
		podspec.Default(r)
		if podspec.Validate(r) != nil {
			return nil
		}
		r.Spec.Containers = nil
	}
	if r.Annotations == nil {
		r.Annotations = map[string]string{}
	}
	r.Annotations[AnnotationInvalid] = text.Clip(err.Error(), maxReason, "...")
	return r
}

func reducedContainers(containers []corev1.Container) []corev1.Container {
	var reduced []corev1.Container
	for _, c := range containers {
		reduced = append(reduced, corev1.Container{Name: c.Name, Image: c.Image, Resources: c.Resources, RestartPolicy: c.RestartPolicy})
	}
	return reduced
}

// addInvalid adds the invalid pods that the reader has to reject: those with an identity of
// which no valid version is retained.
func (d *sourceState) addInvalid() {
	if len(d.bad) == 0 {
		return
	}
	has := make(map[types.UID]bool, len(d.entries))
	for _, e := range d.entries {
		has[e.pod.UID] = true
	}
	for _, e := range d.byManifest {
		if e.isDelivered() && e.err != nil && !has[e.pod.UID] {
			has[e.pod.UID] = true
			d.entries = append(d.entries, e)
		}
	}
}

// isDelivered reports whether the entry may be delivered: it is valid or marked as invalid.
func (e *entry) isDelivered() bool {
	return e.err == nil || e.pod != nil && InvalidReason(e.pod) != ""
}
