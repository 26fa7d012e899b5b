package status

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/runtime"
)

// rejectedStatus returns the status of a pod that was not admitted. A terminal phase
// is kept. Containers that never ran have no status: clients that list pods would
// show their waiting reason instead of the reason of the rejection. Nor does the pod have an address.
func rejectedStatus(pod *corev1.Pod, previous corev1.PodStatus, reason, message string, env NodeInfo, now time.Time) corev1.PodStatus {
	st := Generate(pod, runtime.Report{
		Termination: &runtime.Termination{Reason: reason, Message: podspec.RejectedPrefix + message},
		Finished:    true,
	}, previous, env, now)
	if noContainers(&previous) {
		st.InitContainerStatuses, st.ContainerStatuses, st.EphemeralContainerStatuses = nil, nil, nil
		st.PodIP, st.PodIPs = "", nil
	}
	return st
}

func noContainers(st *corev1.PodStatus) bool {
	return len(st.InitContainerStatuses)+len(st.ContainerStatuses)+len(st.EphemeralContainerStatuses) == 0
}
