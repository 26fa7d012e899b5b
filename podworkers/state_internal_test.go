package podworkers

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/internal/clocktest"
	"github.com/sublet-dev/agent/runtime"
)

// SL-5, AG-10: a due time that comes from the runtime's wall clock is kept by the
// monotonic one.
func TestDueTimesOfAnotherClock(t *testing.T) {
	const step = 3 * time.Hour
	p := policy{resync: time.Minute, backOff: time.Minute, jitter: func(d time.Duration) time.Duration { return d }}
	for _, err := range []error{nil, errors.New("no luck")} {
		now := time.Now()
		l := &podState{uid: "a", pod: new(corev1.Pod)}
		turn := l.start()
		l.end(turn, runtime.SyncResult{RequeueAt: now.Add(10 * time.Second).Round(0)}, err, p, now)
		l.requeue(RequeueDue, clocktest.BeforeSetBack(t, now.Add(9*time.Second), step))
		assert.Equal(t, notRequested, l.urgency, "the clock was set forward")
		l.requeue(RequeueDue, clocktest.BeforeSetBack(t, now.Add(11*time.Second), -step))
		assert.Equal(t, immediate, l.urgency, "the clock was set back")
	}
}
