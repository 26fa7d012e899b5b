package podsync

import (
	"log/slog"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/internal/safe"
	"github.com/sublet-dev/agent/runtime"
)

// Hooks observe the syncs of pods. They are called synchronously, by the goroutine of the
// pod's sync, and must not block. Any may be nil.
type Hooks struct {
	// VolumesMounted is called after the volumes of a pod were mounted for the first time
	// in this process or after an error, and after each failed try. Later syncs, which find
	// them mounted, do not call it, and neither does a pod without volumes.
	VolumesMounted func(pod *corev1.Pod, volumes int, duration time.Duration, err error)
	// Injected is called after it was decided what a new container gets in addition to its spec, if
	// there are Injectors. err is that of the first one that failed.
	Injected func(pod *corev1.Pod, container string, injection runtime.Injection, err error)
	// Rejected is called for an admitted pod that fails because the node has no place for one of
	// its volumes.
	Rejected func(pod *corev1.Pod, reason, message string)
	// ContainerExited is called once for each exit of a container that a sync observes. The
	// exits that the saved status of the pod has already are left out.
	ContainerExited func(pod *corev1.Pod, c runtime.Container)
	// BackOffStarted is called once for each back-off of a container, or of the sandbox for
	// an empty name. f.Until is its end.
	BackOffStarted func(pod *corev1.Pod, container string, f runtime.Failure)
}

// Join returns hooks that call those of h and then those of next. A panic of one is logged
// and does not prevent the others from being called. Join allocates; calls do not.
func (h Hooks) Join(log *slog.Logger, next Hooks) Hooks {
	return Hooks{
		VolumesMounted:  safe.Hook4(log, "PodSync.VolumesMounted", h.VolumesMounted, next.VolumesMounted),
		Injected:        safe.Hook4(log, "PodSync.Injected", h.Injected, next.Injected),
		Rejected:        safe.Hook3(log, "PodSync.Rejected", h.Rejected, next.Rejected),
		ContainerExited: safe.Hook2(log, "PodSync.ContainerExited", h.ContainerExited, next.ContainerExited),
		BackOffStarted:  safe.Hook3(log, "PodSync.BackOffStarted", h.BackOffStarted, next.BackOffStarted),
	}
}

// guarded returns hooks that recover panics.
func (h Hooks) guarded(log *slog.Logger) Hooks {
	return Hooks{
		VolumesMounted:  safe.Hook4(log, "VolumesMounted", h.VolumesMounted),
		Injected:        safe.Hook4(log, "Injected", h.Injected),
		Rejected:        safe.Hook3(log, "Rejected", h.Rejected),
		ContainerExited: safe.Hook2(log, "ContainerExited", h.ContainerExited),
		BackOffStarted:  safe.Hook3(log, "BackOffStarted", h.BackOffStarted),
	}
}

// volumesMounted calls the hook for a call of Mount that changed something.
func (s *Syncer) volumesMounted(pod *corev1.Pod, st *podState, volumes int, startTime time.Time, err error) {
	first := !st.volumesMounted
	st.volumesMounted = err == nil
	if s.cfg.Hooks.VolumesMounted != nil && (err != nil || first && volumes > 0) {
		s.cfg.Hooks.VolumesMounted(pod, volumes, time.Since(startTime), err)
	}
}
