package podworkers

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/runtime"
)

// minGrace is what every pod gets that is not killed by force.
const minGrace = time.Second

// atLeast cuts a grace to whole seconds, one of them at the least.
func atLeast(d time.Duration) time.Duration {
	return max(d.Truncate(time.Second), minGrace)
}

// ownGrace is what the pod itself asks for: its deletion's where that was told,
// which the API server worked out from the spec's and the user's wish.
func ownGrace(pod *corev1.Pod) time.Duration {
	return atLeast(podspec.GracePeriod(pod))
}

// orphanGrace is what the pod's labels in the runtime say, the longest if they
// differ.
func orphanGrace(seen runtime.Pod) time.Duration {
	var grace time.Duration
	for i := range seen.Sandboxes {
		grace = max(grace, seen.Sandboxes[i].GracePeriod)
	}
	for i := range seen.Containers {
		grace = max(grace, seen.Containers[i].GracePeriod)
	}
	if grace == 0 {
		grace = podspec.DefaultGracePeriod
	}
	return atLeast(grace)
}

// shorter returns the grace that is left when a Kill joins in.
func (k KillOptions) shorter(grace time.Duration) time.Duration {
	switch {
	case k.Force:
		return 0
	case k.GracePeriod > 0:
		return min(grace, atLeast(k.GracePeriod))
	}
	return grace
}
