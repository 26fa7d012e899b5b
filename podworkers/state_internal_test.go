package podworkers

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sublet-dev/agent/internal/clocktest"
	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/runtime"
)

// SL-5, AG-10: RequeueAt is compared by the monotonic clock, although the Syncer
// returns wall clock time.
func TestPodState_RequeueAtSurvivesClockChange(t *testing.T) {
	const step = 3 * time.Hour
	p := policy{resyncPeriod: time.Minute, backOff: time.Minute, jitter: func(d time.Duration) time.Duration { return d }}
	for _, err := range []error{nil, errors.New("sync failed")} {
		now := time.Now()
		s := &podState{uid: "a", pod: new(corev1.Pod)}
		call := s.start()
		s.complete(call, runtime.SyncResult{RequeueAt: now.Add(10 * time.Second).Round(0)}, err, p, now)
		s.requeueDue(clocktest.BeforeSetBack(t, now.Add(9*time.Second), step))
		assert.Equal(t, notRequested, s.urgency, "the clock was set forward")
		s.requeueDue(clocktest.BeforeSetBack(t, now.Add(11*time.Second), -step))
		assert.Equal(t, immediate, s.urgency, "the clock was set back")
	}
}

// SL-5: a pod is due once, when its requeue time has come.
func TestPodState_RequeueDue(t *testing.T) {
	now := time.Now()
	s := &podState{uid: "a", pod: new(corev1.Pod)}
	assert.Equal(t, effect{uid: "a"}, s.requeueDue(now), "no requeue time")
	assert.Equal(t, notRequested, s.urgency)
	s.requeueAt = now
	assert.Equal(t, effect{uid: "a"}, s.requeueDue(now.Add(-1)), "too early")
	assert.Equal(t, notRequested, s.urgency)
	assert.Equal(t, effect{uid: "a", requeue: true}, s.requeueDue(now))
	assert.Equal(t, immediate, s.urgency)
	assert.Zero(t, s.requeueAt)
}

// PW-16: a static pod leaves nothing behind when it is forgotten.
func TestTracker_ForgetsStaticPodQueue(t *testing.T) {
	now := time.Now()
	tr := newTracker(policy{jitter: func(d time.Duration) time.Duration { return d }})
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		UID: "a", Namespace: "ns", Name: "web", Annotations: map[string]string{podspec.AnnotationSource: "file"},
	}}
	tr.update(Update{Pod: pod}, false, now)
	assert.Len(t, tr.staticPods, 1)
	tr.pods["a"].kill(KillOptions{Termination: runtime.Termination{Deleted: true}}, now)
	for range 2 {
		call, ok := tr.start("a")
		require.True(t, ok)
		tr.complete(call, runtime.SyncResult{}, nil, now)
	}
	assert.Empty(t, tr.staticPods)
	tr.sync(nil, true, now)
	assert.Empty(t, tr.pods)
	tr.sync(nil, true, now.Add(tombstoneTTL+1))
	assert.Empty(t, tr.tombstones)
}
