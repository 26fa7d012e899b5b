package podworkers

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/runtime"
)

// minGracePeriod is the shortest grace period without KillOptions.Force.
const minGracePeriod = time.Second

// clampGracePeriod truncates d to whole seconds and returns at least
// minGracePeriod.
func clampGracePeriod(d time.Duration) time.Duration {
	return max(d.Truncate(time.Second), minGracePeriod)
}

// podGracePeriod returns the deletion grace period of the pod if it is set, which
// the API server derives from the spec and the delete options, and that of the
// spec otherwise.
func podGracePeriod(pod *corev1.Pod) time.Duration {
	return clampGracePeriod(podspec.GracePeriod(pod))
}

// orphanGracePeriod returns the longest grace period in the labels of the pod's
// sandboxes and containers.
func orphanGracePeriod(observed runtime.Pod) time.Duration {
	if observed.Object != nil {
		return podGracePeriod(observed.Object)
	}
	var grace time.Duration
	for i := range observed.Sandboxes {
		grace = max(grace, observed.Sandboxes[i].GracePeriod)
	}
	for i := range observed.Containers {
		grace = max(grace, observed.Containers[i].GracePeriod)
	}
	if grace == 0 {
		grace = podspec.DefaultGracePeriod
	}
	return clampGracePeriod(grace)
}

// shortened returns the grace period that results from a kill during current.
func (k KillOptions) shortened(current time.Duration) time.Duration {
	switch {
	case k.Force:
		return 0
	case k.GracePeriod > 0:
		return min(current, clampGracePeriod(k.GracePeriod))
	}
	return current
}
