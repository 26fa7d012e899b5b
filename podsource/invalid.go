package podsource

import corev1 "k8s.io/api/core/v1"

// AnnotationInvalid is what is wrong with a delivered pod that is invalid. A Mux removes
// it from all other pods. See InvalidReason.
const AnnotationInvalid = "sublet.dev/invalid"

// InvalidReason returns what is wrong with a delivered pod, with the names of its fields,
// or "" for a valid one. An invalid pod must not be started. It is a pod with its own UID,
// is not static and was never valid in this process: someone waits for its status and, when
// it is deleted, for its end. It has only the metadata, the status and what of its
// containers is valid.
func InvalidReason(pod *corev1.Pod) string { return pod.Annotations[AnnotationInvalid] }
