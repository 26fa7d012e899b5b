package status_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/runtime"
	"github.com/sublet-dev/agent/status"
)

// ST-7: a status that a sink rejects is tried ever less often, and its reason is logged once. A new
// status is sent at once, and the sink does not count as down.
func TestManager_RejectedStatus(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var tries atomic.Int64
		var rejects atomic.Bool
		rejects.Store(true)
		sink := newCountingSink(func(context.Context) error {
			tries.Add(1)
			if rejects.Load() {
				return fmt.Errorf("patch pod status: %w: too long", status.ErrRejected)
			}
			return nil
		})
		log := &messages{keys: map[string]bool{}}
		m, stop := start(t, status.Config{Sinks: []status.Sink{sink}, Logger: slog.New(log)})
		p := pod("main:c")
		m.Observe(p, runtime.Report{Observed: view(running("c", 0))})
		pause(2 * time.Hour)
		assert.InDelta(t, 11+24, tries.Load(), 2, "11 times up to 5 minutes, and then every 5 minutes")
		lines, _ := log.take()
		assert.Equal(t, []string{"sending pod status failed"}, lines)

		before := tries.Load()
		m.Resend(p.UID)
		pause(time.Millisecond)
		assert.Equal(t, before, tries.Load(), "it is the same status")
		m.Observe(p, runtime.Report{Observed: view(running("c", 1))})
		pause(time.Millisecond)
		assert.Equal(t, before+1, tries.Load(), "a new status is sent at once")
		pause(10 * time.Second)
		assert.Greater(t, tries.Load(), before+3, "with a back-off of its own")
		lines, _ = log.take()
		assert.Empty(t, lines, "the same reason")

		rejects.Store(false)
		before = tries.Load()
		m.Observe(p, runtime.Report{Observed: view(running("c", 2))})
		pause(time.Hour)
		assert.Equal(t, before+1, tries.Load())
		require.NoError(t, stop())
	})
}

// What changes while it is being rejected is sent at once, and what was forgotten is not tried again.
func TestManager_RejectedMeanwhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var tries atomic.Int64
		sink := newCountingSink(func(context.Context) error {
			n := tries.Add(1)
			time.Sleep(time.Second)
			if n == 1 {
				return status.ErrRejected
			}
			return nil
		})
		m, stop := start(t, status.Config{Sinks: []status.Sink{sink}})
		p := pod("main:c")
		m.Observe(p, runtime.Report{Observed: view(running("c", 0))})
		pause(500 * time.Millisecond)
		m.Observe(p, runtime.Report{Observed: view(running("c", 1))})
		pause(501 * time.Millisecond)
		assert.EqualValues(t, 2, tries.Load())
		pause(time.Minute)
		assert.EqualValues(t, 2, tries.Load())
		require.NoError(t, stop())
	})
}

// The end of a pod does not wait: the sink may know that the pod is deleted.
func TestManager_RejectedAndForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var tries atomic.Int64
		var deleted atomic.Bool
		sink := newCountingSink(func(context.Context) error {
			tries.Add(1)
			if !deleted.Load() {
				return status.ErrRejected
			}
			return nil
		})
		m, stop := start(t, status.Config{Sinks: []status.Sink{sink}})
		p := pod("main:c")
		m.Observe(p, runtime.Report{Observed: view(exited("c", 0, 0)), Finished: true})
		pause(time.Hour)
		before := tries.Load()
		deleted.Store(true)
		m.Forget(p.UID)
		pause(time.Millisecond)
		assert.Equal(t, before+2, tries.Load(), "the last status and the deletion")
		assert.Empty(t, m.PodUIDs())
		require.NoError(t, stop())
	})
}

// ST-7: what a sink rejects does not delay the stop; it is sent once more. What may still be accepted is waited for.
func TestManager_StopDoesNotWaitForRejectedStatuses(t *testing.T) {
	for name, tc := range map[string]struct {
		fails int64 // sends of the other pod
		want  time.Duration
	}{"alone": {0, 0}, "beside one that is accepted later": {2, 3500 * time.Millisecond}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var rejected, failed atomic.Int64
				away := tc.fails > 0
				sink := sinkFunc(func(pod *corev1.Pod) error {
					if pod.Name == "rejected" {
						rejected.Add(1)
						return status.ErrRejected
					}
					if away && failed.Add(1) <= 2*tc.fails {
						return errors.New("connection refused")
					}
					return nil
				})
				m, stop := start(t, status.Config{Sinks: []status.Sink{sink}, BackOff: time.Second, MaxBackOff: time.Second, FlushTimeout: 30 * time.Second})
				p, other := pod("main:c"), pod("main:c")
				p.Name, p.UID, other.Name, other.UID = "rejected", "rejected", "other", "other"
				m.Observe(p, runtime.Report{Observed: view(running("c", 0))})
				pause(time.Hour)
				before := rejected.Load()
				m.Observe(other, runtime.Report{Observed: view(running("c", 0))})
				pause(500 * time.Millisecond)

				stopped := time.Now()
				require.ErrorContains(t, stop(), "1 statuses not sent")
				assert.LessOrEqual(t, time.Since(stopped), tc.want)
				assert.Greater(t, rejected.Load(), before)
				assert.Equal(t, away, failed.Load() > 2*tc.fails, "the other one was sent")
			})
		})
	}
}

// sinkFunc is a Sink.
type sinkFunc func(pod *corev1.Pod) error

func (f sinkFunc) SetStatus(_ context.Context, pod *corev1.Pod, _ corev1.PodStatus) error {
	return f(pod)
}
