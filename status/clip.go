package status

import (
	"iter"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/internal/text"
	"github.com/sublet-dev/agent/podspec"
)

// maxText bounds reasons and messages of a status, in bytes, for they repeat errors of runtimes,
// drivers and registries, which may be of any length: an API server takes no object of more than
// about 1 MiB. Those of terminations may be as long as the messages of all containers together.
const maxText = 4096

// clipped returns the status with short texts of valid UTF-8. It is a copy if there are others.
func clipped(st corev1.PodStatus) corev1.PodStatus {
	for message, limit := range texts(&st) {
		if !isShort(*message, limit) {
			return clippedCopy(&st)
		}
	}
	return st
}

func clippedCopy(st *corev1.PodStatus) corev1.PodStatus {
	out := st.DeepCopy()
	for message, limit := range texts(out) {
		if !isShort(*message, limit) {
			*message = text.Clip(*message, limit, "…")
		}
	}
	return *out
}

// texts yields the reasons and messages of a status, with their limits.
func texts(st *corev1.PodStatus) iter.Seq2[*string, int] {
	return func(yield func(*string, int) bool) {
		if !yield(&st.Reason, maxText) || !yield(&st.Message, maxText) {
			return
		}
		for i := range st.Conditions {
			if c := &st.Conditions[i]; !yield(&c.Reason, maxText) || !yield(&c.Message, maxText) {
				return
			}
		}
		for c := range podspec.ContainerStatuses(st) {
			for _, state := range []*corev1.ContainerState{&c.State, &c.LastTerminationState} {
				if w := state.Waiting; w != nil && (!yield(&w.Reason, maxText) || !yield(&w.Message, maxText)) {
					return
				}
				if t := state.Terminated; t != nil && (!yield(&t.Reason, maxText) || !yield(&t.Message, maxMessages)) {
					return
				}
			}
		}
	}
}

func isShort(s string, limit int) bool { return len(s) <= limit && utf8.ValidString(s) }
