package runtime

import (
	"time"

	corev1 "k8s.io/api/core/v1"
)

// BackOff returns how long an exited container waits before it is restarted. It is
// called by Plan: it must not block, and must return the same delay for the same
// RestartInfo.
type BackOff interface {
	Delay(RestartInfo) time.Duration
}

// BackOffResetter is an optional interface of a BackOff. ShouldReset reports whether a
// run was long enough to reset the back-off. Without it, that is a run of ten minutes.
type BackOffResetter interface {
	ShouldReset(RestartInfo) bool
}

// RestartInfo describes a restart to a BackOff.
type RestartInfo struct {
	Pod         *corev1.Pod
	Container   *corev1.Container
	ExitCode    int32
	BackOffStep int           // consecutive restarts so far; 0 for the first
	Attempt     uint32        // total restarts so far
	RunDuration time.Duration // duration of the last run; 0 if unknown
}

// Defaults of ExponentialBackOff, which are the kubelet's.
const (
	defaultBackOffBase  = 10 * time.Second
	defaultBackOffMax   = 5 * time.Minute
	defaultBackOffReset = 10 * time.Minute
)

// DefaultBackOff returns the back-off of the kubelet: the first restart is immediate,
// the second after 10s, and each further one after twice the delay, up to 5m. A run of
// 10m resets it.
func DefaultBackOff() ExponentialBackOff { return ExponentialBackOff{} }

// ExponentialBackOff doubles the delay with each consecutive restart. The first restart
// is immediate. Its zero value is DefaultBackOff.
type ExponentialBackOff struct {
	Base  time.Duration // wait before the second restart; at most Max. Default: 10s
	Max   time.Duration // longest wait; at least 1s. Default: 5m
	Reset time.Duration // a run of this length resets the back-off. Default: 10m
}

var (
	_ BackOff         = ExponentialBackOff{}
	_ BackOffResetter = ExponentialBackOff{}
)

// Delay implements BackOff.
func (b ExponentialBackOff) Delay(r RestartInfo) time.Duration {
	if r.BackOffStep <= 0 {
		return 0
	}
	limit := max(orElse(b.Max, defaultBackOffMax), time.Second)
	delay := min(orElse(b.Base, defaultBackOffBase), limit)
	for range r.BackOffStep - 1 {
		if delay > limit/2 {
			return limit
		}
		delay *= 2
	}
	return delay
}

// ShouldReset implements BackOffResetter.
func (b ExponentialBackOff) ShouldReset(r RestartInfo) bool {
	return r.RunDuration >= orElse(b.Reset, defaultBackOffReset)
}

func orElse(d, fallback time.Duration) time.Duration {
	if d <= 0 {
		return fallback
	}
	return d
}
