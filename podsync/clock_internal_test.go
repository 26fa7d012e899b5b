package podsync

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sublet-dev/agent/internal/clocktest"
	"github.com/sublet-dev/agent/runtime"
)

// PS-5, AG-10: the deadline is measured on the monotonic clock from the first time at
// which the start of the pod was observed.
func TestActiveDeadline_AfterClockWasSet(t *testing.T) {
	limit := int64(1800)
	pod := &corev1.Pod{Spec: corev1.PodSpec{ActiveDeadlineSeconds: &limit}}
	for name, step := range map[string]time.Duration{"forward by 3 h": -3 * time.Hour, "back by 3 h": 3 * time.Hour} {
		t.Run(name, func(t *testing.T) {
			now := time.Now() // the clock is set after this
			start := metav1.NewTime(now.Round(0))
			st := new(podState)
			_ = st.activeSince(&start, now)
			for _, tt := range []struct {
				after time.Duration
				late  bool
			}{{10 * time.Minute, false}, {30*time.Minute - time.Second, false}, {30 * time.Minute, true}, {31 * time.Minute, true}} {
				at := clocktest.BeforeSetBack(t, now.Add(tt.after), -step)
				active := st.activeSince(&start, at)
				due, late := isPastActiveDeadline(pod, &active, at)
				assert.Equal(t, tt.late, late, "after %v", tt.after)
				assert.Equal(t, 30*time.Minute-tt.after, due.Sub(at))
			}
		})
	}
	t.Run("a start in the future", func(t *testing.T) {
		now := time.Now()
		start := metav1.NewTime(now.Add(3 * time.Hour).Round(0))
		active := new(podState).activeSince(&start, now)
		due, _ := isPastActiveDeadline(pod, &active, now)
		assert.Equal(t, 30*time.Minute, due.Sub(now), "never longer than the deadline itself")
	})
	t.Run("a different start", func(t *testing.T) {
		now := time.Now()
		first, second := metav1.NewTime(now.Add(-time.Hour)), metav1.NewTime(now)
		st := new(podState)
		_ = st.activeSince(&first, now)
		active := st.activeSince(&second, now)
		assert.Zero(t, active.Sub(now))
	})
	t.Run("none", func(t *testing.T) {
		active := new(podState).activeSince(nil, time.Now())
		due, late := isPastActiveDeadline(pod, &active, time.Now())
		assert.True(t, due.IsZero())
		assert.False(t, late)
	})
}

func TestActiveDeadline_LongerThanDuration(t *testing.T) {
	start := metav1.Now()
	for _, limit := range []int64{math.MaxInt32, 9223372036, 9223372037, 9999999999, math.MaxInt64} {
		pod := &corev1.Pod{Spec: corev1.PodSpec{ActiveDeadlineSeconds: &limit}}
		due, late := isPastActiveDeadline(pod, &start, time.Now())
		assert.False(t, late, "%d s: due %v", limit, due)
	}
}

// RT-8, AG-10: setting the wall clock does not change the length of a back-off, and a
// sync during the back-off does not restart it.
func TestBackOff_AfterClockWasSet(t *testing.T) {
	always := corev1.ContainerRestartPolicyAlways
	pod := &corev1.Pod{Spec: corev1.PodSpec{RestartPolicy: corev1.RestartPolicyAlways, Containers: []corev1.Container{{Name: "a", RestartPolicy: &always}}}}
	for name, tt := range map[string]struct{ step, ended time.Duration }{
		"forward by 3 h": {-3 * time.Hour, -time.Second},
		"back by 3 h":    {3 * time.Hour, -time.Second},
		"back by 30 s":   {30 * time.Second, -time.Second},
		"back by 3 h before the end was observed":  {0, 3 * time.Hour},
		"back by 30 s before the end was observed": {0, 30 * time.Second},
		"forward, and the end was observed late":   {-3 * time.Hour, -time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			now := time.Now()
			dead := runtime.Container{
				ID: "c", Name: "a", SandboxID: "s", State: runtime.Exited, ExitCode: 1, Attempt: 9, BackOffStep: 9,
				Created: now.Add(tt.ended).Round(0), Started: now.Add(tt.ended).Round(0), Finished: now.Add(tt.ended).Round(0),
				Hash: runtime.HashContainer(&pod.Spec.Containers[0]),
			}
			observed := runtime.Pod{
				Sandboxes:  []runtime.Sandbox{{ID: "s", State: runtime.SandboxReady, IPs: []string{"10.0.0.1"}}},
				Containers: []runtime.Container{dead},
			}
			st := new(podState)
			verb := func(after time.Duration) runtime.ActionType {
				at := clocktest.BeforeSetBack(t, now.Add(after), -tt.step)
				plan := runtime.Plan(pod, runtime.PlanInput{Pod: st.withEnds(observed, at)}, at)
				require.Len(t, plan, 1)
				if plan[0].Type == runtime.Wait {
					assert.LessOrEqual(t, plan[0].Until.Sub(at), 5*time.Minute-after, "no longer than the back-off")
				}
				return plan[0].Type
			}
			if tt.ended < -5*time.Minute {
				assert.Equal(t, runtime.StartContainer, verb(0))
				return
			}
			_ = st.withEnds(observed, now) // the clock is set after this
			for _, after := range []time.Duration{0, time.Minute, 4 * time.Minute, 5*time.Minute - 2*time.Second} {
				assert.Equal(t, runtime.Wait, verb(after), "after %v", after)
			}
			assert.Equal(t, runtime.StartContainer, verb(5*time.Minute))
			assert.Equal(t, dead.Finished, observed.Containers[0].Finished, "the observed state is read-only")
		})
	}
	t.Run("removed containers are forgotten", func(t *testing.T) {
		st := new(podState)
		_ = st.withEnds(runtime.Pod{Containers: []runtime.Container{{ID: "c", State: runtime.Exited, Finished: time.Now()}}}, time.Now())
		assert.Len(t, st.ends, 1)
		_ = st.withEnds(runtime.Pod{}, time.Now())
		assert.Empty(t, st.ends)
	})
}
