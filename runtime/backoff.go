package runtime

import (
	"time"

	corev1 "k8s.io/api/core/v1"
)

// BackOff chooses how long a container that ended waits before it is started
// again. It is called while planning: it must be fast and must not block, and
// the same Restart must give the same answer.
type BackOff interface {
	Delay(Restart) time.Duration
}

// Restart is a restart that a BackOff is asked about.
type Restart struct {
	Pod       *corev1.Pod
	Container *corev1.Container
	ExitCode  int32
	Step      int    // restarts in a row so far; 0 for the first
	Attempt   uint32 // restarts in all so far
}
