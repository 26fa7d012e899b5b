package status

import (
	"log/slog"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/internal/safe"
)

// Hooks observe a Manager. They are called synchronously, from the goroutine that
// caused them, and must not block. Any may be nil.
type Hooks struct {
	// Changed is called when a pod's status changed. Both statuses are read-only.
	// previous is zero for the first status of a pod in this process.
	Changed func(pod *corev1.Pod, previous, now corev1.PodStatus)
	// Sent is called after each send, with its duration and the time that the status
	// had waited for it, without what a Delayer asked for.
	Sent func(pod *corev1.Pod, duration, waited time.Duration, err error)
}

// Join returns hooks that call those of h and then those of next. A panic of one is logged
// and does not prevent the others from being called. Join allocates; calls do not.
func (h Hooks) Join(log *slog.Logger, next Hooks) Hooks {
	return Hooks{
		Changed: safe.Hook3(log, "Status.Changed", h.Changed, next.Changed),
		Sent:    safe.Hook4(log, "Status.Sent", h.Sent, next.Sent),
	}
}

// guarded returns hooks that recover panics.
func (h Hooks) guarded(log *slog.Logger) Hooks {
	return Hooks{
		Changed: safe.Hook3(log, "Changed", h.Changed),
		Sent:    safe.Hook4(log, "Sent", h.Sent),
	}
}
