package status_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/runtime"
	"github.com/sublet-dev/agent/status"
)

// messages is a log handler that keeps the messages and what they are about.
type messages struct {
	mu    sync.Mutex
	lines []string
	keys  map[string]bool
}

func (m *messages) Enabled(context.Context, slog.Level) bool { return true }
func (m *messages) WithGroup(string) slog.Handler            { return m }
func (m *messages) WithAttrs(attrs []slog.Attr) slog.Handler {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, a := range attrs {
		m.keys[a.Key] = true
	}
	return m
}

func (m *messages) Handle(_ context.Context, r slog.Record) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.lines = append(m.lines, r.Message)
	return nil
}

func (m *messages) take() (lines []string, stack bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	lines, stack = m.lines, m.keys["stack"]
	m.lines, m.keys = nil, map[string]bool{}
	return lines, stack
}

// ST-7: one pod's failures are tried again after 0.2 s and then twice as long each
// time, up to five seconds.
func TestManager_BacksOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		var tries []time.Duration
		sink := newCountingSink(func(context.Context) error {
			tries = append(tries, time.Since(began))
			return errors.New("unreachable")
		})
		m, stop := start(t, status.Config{Sinks: []status.Sink{sink}, FlushTimeout: time.Second})
		m.Observe(pod("main:c"), runtime.Report{Observed: view(running("c", 0))})
		pause(20 * time.Second)
		var want []time.Duration
		for _, ms := range []int{0, 200, 600, 1400, 3000, 6200, 11200, 16200} {
			want = append(want, time.Duration(ms)*time.Millisecond)
		}
		assert.Equal(t, want, tries)
		require.Error(t, stop())
	})
}

// A sink that is down is logged once, until it is back; a panic with where it was.
func TestManager_LogsFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var fails, panics atomic.Bool
		sink := newCountingSink(func(context.Context) error {
			switch {
			case panics.Load():
				panic("a sink's bug")
			case fails.Load():
				return errors.New("unreachable")
			}
			return nil
		})
		log := &messages{keys: map[string]bool{}}
		m, stop := start(t, status.Config{Sinks: []status.Sink{sink}, Logger: slog.New(log)})
		for life := range 2 {
			fails.Store(true)
			m.Observe(pod("main:c"), runtime.Report{Observed: view(running("c", uint32(2*life)))})
			pause(5 * time.Minute)
			lines, stack := log.take()
			require.Len(t, lines, 20)
			for _, line := range lines[:19] {
				assert.Equal(t, "sending pod status failed", line)
			}
			assert.Equal(t, "status sink is down, suppressing its failures until it recovers", lines[19])
			assert.False(t, stack)
			fails.Store(false)
			pause(10 * time.Second)
			lines, _ = log.take()
			assert.Empty(t, lines)
		}
		panics.Store(true)
		m.Observe(pod("main:c"), runtime.Report{Observed: view(running("c", 9))})
		pause(time.Millisecond)
		lines, stack := log.take()
		assert.Equal(t, []string{"sending pod status failed"}, lines)
		assert.True(t, stack)
		panics.Store(false)
		require.NoError(t, stop())
	})
}

// The hook is called for each send, also of a deletion, but not for a pod whose sink
// has the status already.
func TestManager_SentHook(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sink := newFakeSink()
		sink.took = time.Second
		type sent struct{ took, waited time.Duration }
		var got []sent
		var changes []string
		m, stop := start(t, status.Config{Sinks: []status.Sink{sink}, Hooks: status.Hooks{
			Sent: func(_ *corev1.Pod, took, waited time.Duration, err error) {
				require.NoError(t, err)
				got = append(got, sent{took, waited})
			},
			Changed: func(_ *corev1.Pod, previous, now corev1.PodStatus) {
				changes = append(changes, fmt.Sprintf("%s to %s", previous.Phase, now.Phase))
			},
		}})
		p := pod("policy=Never", "main:c")
		m.Observe(p, runtime.Report{Observed: view(running("c", 0))})
		m.Observe(p, runtime.Report{Observed: view(running("c", 0))})
		pause(100 * time.Millisecond)
		m.Observe(p, runtime.Report{Observed: view(exited("c", 0, 0)), Finished: true})
		pause(5 * time.Second)
		assert.Equal(t, []sent{{time.Second, 0}, {time.Second, 0}}, got, "what changes while it is sent waits from then on")
		assert.Equal(t, []string{" to Running", "Running to Succeeded"}, changes)
		m.Forget(p.UID)
		pause(5 * time.Second)
		assert.Equal(t, sent{}, got[2])
		assert.Len(t, got, 3)
		require.NoError(t, stop())
	})
}

// A sink that hears of its end is not waited for longer than that.
func TestManager_EndsWithItsSinks(t *testing.T) {
	for name, tc := range map[string]struct {
		deaf bool
		want time.Duration
	}{
		"it hears":    {false, 2 * time.Second},
		"it does not": {true, 3 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				sink := newCountingSink(func(ctx context.Context) error {
					if tc.deaf {
						time.Sleep(time.Minute)
						return nil
					}
					<-ctx.Done()
					return ctx.Err()
				})
				m, stop := start(t, status.Config{Sinks: []status.Sink{sink}, FlushTimeout: 2 * time.Second})
				m.Observe(pod("main:c"), runtime.Report{Observed: view(running("c", 0))})
				pause(time.Second)
				began := time.Now()
				require.ErrorContains(t, stop(), "1 statuses not sent")
				assert.Equal(t, tc.want, time.Since(began))
				pause(time.Hour)
			})
		})
	}
}

// What is known of pods: those that are not gone, with their newest status.
func TestManager_WhatIsKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, stop := start(t, status.Config{})
		known := func() (uids []types.UID) {
			for _, p := range m.Pods() {
				uids = append(uids, p.UID)
				st, ok := m.Get(p.UID)
				assert.True(t, ok)
				assert.Equal(t, st, p.Status)
			}
			return uids
		}
		a, b := withUID(pod("policy=Never", "main:c"), "a"), withUID(pod("main:c"), "b")
		m.Restore(nil, &corev1.Pod{}, a)
		m.Observe(b, runtime.Report{Observed: view(running("c", 4))})
		m.Restore(b)
		assert.ElementsMatch(t, []types.UID{"a", "b"}, known())
		st, _ := m.Get("b")
		assert.Equal(t, corev1.PodRunning, st.Phase, "it is newer than what is restored")
		assert.Empty(t, b.Status.Phase, "the pod is not changed")

		m.Forget("b")
		m.Forget("c")
		assert.ElementsMatch(t, []types.UID{"a", "b"}, known(), "it still holds something")
		assert.Equal(t, []types.UID{"a"}, m.PodUIDs())
		m.Observe(b, runtime.Report{Observed: view(exited("c", 4, 0)), Termination: &runtime.Termination{Deleted: true}, Finished: true})
		assert.Equal(t, []types.UID{"a"}, known())
		_, ok := m.Get("b")
		assert.False(t, ok)
		m.Resend("b")

		// It is recreated with the same UID: it is sent as a new pod.
		st = m.Observe(b, runtime.Report{Observed: view()})
		assert.Equal(t, corev1.PodPending, st.Phase)
		assert.Zero(t, st.ContainerStatuses[0].RestartCount)
		assert.ElementsMatch(t, []types.UID{"a", "b"}, known())
		m.Forget("a")
		assert.Equal(t, []types.UID{"b"}, known())
		require.NoError(t, stop())
	})
}

// A pod that is recreated before its deletion was sent keeps its status, and is not
// deleted; also when its status is the same as before.
func TestManager_PodRecreatedBeforeDeletionIsSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var back atomic.Bool
		sink := newFakeSink()
		sink.fail = func(*corev1.Pod) error {
			if !back.Load() {
				return errors.New("unreachable")
			}
			return nil
		}
		m, stop := start(t, status.Config{Sinks: []status.Sink{sink}})
		p := pod("main:c")
		pending := runtime.Report{Observed: view()}
		m.Observe(p, runtime.Report{Observed: view(), Finished: true})
		m.Forget(p.UID)
		m.Observe(p, pending)
		pause(time.Second)
		back.Store(true)
		pause(10 * time.Second)
		assert.Equal(t, []corev1.PodPhase{corev1.PodPending}, sink.phases[p.UID])
		assert.Empty(t, sink.deleted)
		m.Resend(p.UID)
		m.Resend("nobody")
		pause(time.Second)
		assert.Len(t, sink.phases[p.UID], 2)
		require.NoError(t, stop())
	})
}
