package status

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/runtime"
)

// refused returns the status of a pod that was not admitted. A pod that is
// terminal already stays what it is.
func refused(pod *corev1.Pod, former corev1.PodStatus, reason, message string, env Env, now time.Time) corev1.PodStatus {
	return Generate(pod, runtime.Report{
		Ending:   &runtime.Ending{Reason: reason, Message: message},
		Finished: true,
	}, former, env, now)
}
