package status_test

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/runtime"
	"github.com/sublet-dev/agent/status"
)

// patientSink may get the status of a pending pod a second later.
type patientSink struct {
	*fakeSink
	panics bool
}

func (s patientSink) Delay(st *corev1.PodStatus) time.Duration {
	if s.panics {
		panic("a sink's bug")
	}
	if st.Phase == corev1.PodPending {
		return time.Second
	}
	return 0
}

// ST-6: a status that may wait is merged into a newer one, for as long as the sink says.
func TestManager_DelaysStatuses(t *testing.T) {
	const pending, run = corev1.PodPending, corev1.PodRunning
	p := pod("main:c", "main:d")
	first, second := runtime.Report{Observed: runtime.Pod{UID: p.UID, ObservedAt: testTime}}, runtime.Report{Observed: view()}
	started := runtime.Report{Observed: view(running("c", 0), running("d", 0))}
	for name, tc := range map[string]struct {
		panics bool
		do     func(m *status.Manager)
		soon   []corev1.PodPhase // what the sink has at the end of do
		later  []corev1.PodPhase // what it has a second after the first report
	}{
		"one that stays": {do: func(m *status.Manager) { m.Observe(p, first) }, later: []corev1.PodPhase{pending}},
		"two, from the first on": {do: func(m *status.Manager) {
			m.Observe(p, first)
			pause(900 * time.Millisecond)
			m.Observe(p, second)
		}, later: []corev1.PodPhase{pending}},
		"one that is replaced": {do: func(m *status.Manager) {
			m.Observe(p, first)
			pause(500 * time.Millisecond)
			m.Observe(p, started)
		}, soon: []corev1.PodPhase{run}, later: []corev1.PodPhase{run}},
		"one that may not wait": {do: func(m *status.Manager) { m.Observe(p, started) }, soon: []corev1.PodPhase{run}, later: []corev1.PodPhase{run}},
		"a pod that the sink has, and that waits no longer": {do: func(m *status.Manager) {
			m.Observe(p, first)
			pause(time.Second)
			m.Observe(p, runtime.Report{Observed: view(), Blocked: &runtime.Failure{Message: "wait"}})
			synctest.Wait()
			m.Observe(p, second)
		}, soon: []corev1.PodPhase{pending, pending, pending}, later: []corev1.PodPhase{pending, pending, pending}},
		"a sink that panics": {panics: true, do: func(m *status.Manager) { m.Observe(p, first) }, soon: []corev1.PodPhase{pending}, later: []corev1.PodPhase{pending}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				sink, other := patientSink{newFakeSink(), tc.panics}, newFakeSink()
				waits := func(_ *corev1.Pod, _, waited time.Duration, _ error) { assert.Zero(t, waited) }
				m, stop := start(t, status.Config{Sinks: []status.Sink{sink, other}, Hooks: status.Hooks{Sent: waits}})
				began := time.Now()
				tc.do(m)
				synctest.Wait()
				assert.Equal(t, tc.soon, sink.of(p.UID))
				assert.NotEmpty(t, other.of(p.UID), "another sink has it at once")
				pause(time.Second - time.Since(began))
				assert.Equal(t, tc.later, sink.of(p.UID))
				require.NoError(t, stop())
				assert.Equal(t, tc.later, sink.of(p.UID))
			})
		})
	}
}

// A wait ends with the pod, and with Run.
func TestManager_EndsDelays(t *testing.T) {
	p := pod("main:c")
	for name, end := range map[string]func(m *status.Manager, stop func() error) error{
		"the pod is gone": func(m *status.Manager, _ func() error) error {
			m.Observe(p, runtime.Report{Observed: view(), Finished: true})
			m.Forget(p.UID)
			return nil
		},
		"Run ends": func(_ *status.Manager, stop func() error) error { return stop() },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				sink := patientSink{fakeSink: newFakeSink()}
				m, stop := start(t, status.Config{Sinks: []status.Sink{sink}})
				stop = sync.OnceValue(stop)
				defer func() { require.NoError(t, stop()) }()
				m.Observe(p, runtime.Report{Observed: view()})
				pause(time.Millisecond)
				require.Empty(t, sink.of(p.UID))
				began := time.Now()
				require.NoError(t, end(m, stop))
				synctest.Wait()
				assert.Len(t, sink.of(p.UID), 1)
				assert.Less(t, time.Since(began), time.Second)
			})
		})
	}
}
