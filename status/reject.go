package status

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/runtime"
)

// refused returns the status of a pod that was not admitted. A pod that is
// terminal already stays what it is. Of containers that never ran and never will
// nothing is told: clients that list pods would show what they wait for instead of
// why the pod was refused.
func refused(pod *corev1.Pod, former corev1.PodStatus, reason, message string, env NodeInfo, now time.Time) corev1.PodStatus {
	st := Generate(pod, runtime.Report{
		Termination: &runtime.Termination{Reason: reason, Message: podspec.RejectedPrefix + message},
		Finished:    true,
	}, former, env, now)
	if noContainers(&former) {
		st.InitContainerStatuses, st.ContainerStatuses, st.EphemeralContainerStatuses = nil, nil, nil
	}
	return st
}

func noContainers(st *corev1.PodStatus) bool {
	return len(st.InitContainerStatuses)+len(st.ContainerStatuses)+len(st.EphemeralContainerStatuses) == 0
}
