package runtime

import (
	"time"

	corev1 "k8s.io/api/core/v1"
)

// BackOff chooses how long a container that ended waits before it is started
// again. It is called while planning: it must be fast and must not block, and
// the same Restart must give the same answer.
type BackOff interface {
	Delay(RestartInfo) time.Duration
}

// BackOffResetter is what a BackOff may be besides: it says which runs were so good
// that the count of restarts in a row starts anew after them. Without it that
// is a run of ten minutes.
type BackOffResetter interface {
	ShouldReset(RestartInfo) bool
}

// RestartInfo is a restart that a BackOff is asked about.
type RestartInfo struct {
	Pod         *corev1.Pod
	Container   *corev1.Container
	ExitCode    int32
	BackOffStep int           // restarts in a row so far; 0 for the first
	Attempt     uint32        // restarts in all so far
	RunDuration time.Duration // how long the run that ended lasted; 0 if that is not known
}

// The kubelet's figures.
const (
	DefaultBackOffBase  = 10 * time.Second
	DefaultBackOffMax   = 5 * time.Minute
	DefaultBackOffReset = 10 * time.Minute
)

// DefaultBackOff is the kubelet's: the first restart comes at once, the second
// after 10 s, and each further one after twice the time, up to 5 min. A run of
// 10 min starts the count anew.
func DefaultBackOff() ExponentialBackOff { return ExponentialBackOff{} }

// ExponentialBackOff doubles the wait with each restart in a row. The first
// restart never waits. Its zero value is DefaultBackOff.
type ExponentialBackOff struct {
	Base  time.Duration // wait before the second restart [10s], at most Max
	Max   time.Duration // longest wait [5m]; less than 1s counts as 1s
	Reset time.Duration // a run this long starts the count anew [10m]
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
	limit := max(orElse(b.Max, DefaultBackOffMax), time.Second)
	delay := min(orElse(b.Base, DefaultBackOffBase), limit)
	for range r.BackOffStep - 1 {
		if delay > limit/2 {
			return limit
		}
		delay *= 2
	}
	return delay
}

// ShouldReset implements Resetter.
func (b ExponentialBackOff) ShouldReset(r RestartInfo) bool {
	return r.RunDuration >= orElse(b.Reset, DefaultBackOffReset)
}

func orElse(d, fallback time.Duration) time.Duration {
	if d <= 0 {
		return fallback
	}
	return d
}
