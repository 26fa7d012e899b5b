package status_test

import (
	"context"
	"errors"
	"path/filepath"
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

// What an agent reported before a restart is restored by the next one: readiness
// and started hold until a probe speaks, an exit code that the runtime has
// forgotten is not, a terminal phase stays, and nothing is sent before there is
// a report.
func TestRestart(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "statuses")
	server, job := probed(withUID(pod("main:c"), "server"), true, true), withUID(pod("policy=Never", "main:c"), "job")
	process := func(t *testing.T, life func(*status.Manager, *fakeSink)) {
		files, err := status.NewFileSink(dir)
		require.NoError(t, err)
		previous, err := files.Load()
		require.NoError(t, err)
		synctest.Test(t, func(t *testing.T) {
			sink := newFakeSink()
			m, stop := start(t, status.Config{Sinks: []status.Sink{files, sink}})
			m.Restore(previous...)
			life(m, sink)
			require.NoError(t, stop())
		})
	}
	process(t, func(m *status.Manager, _ *fakeSink) {
		m.Observe(server, runtime.Report{Observed: view(running("c", 0)), Probes: runtime.PodProbeResults{"c-0": {Startup: runtime.ProbeSuccess, Readiness: runtime.ProbeSuccess}}})
		m.Observe(job, runtime.Report{Observed: view(exited("c", 0, 3))})
	})
	process(t, func(m *status.Manager, sink *fakeSink) {
		pause(time.Minute)
		assert.Empty(t, sink.phases, "nothing was seen yet")
		assert.ElementsMatch(t, []types.UID{server.UID, job.UID}, m.PodUIDs())

		st := m.Observe(server, runtime.Report{Observed: view(running("c", 0))})
		assert.True(t, st.ContainerStatuses[0].Ready)
		assert.True(t, *st.ContainerStatuses[0].Started)
		st = m.Observe(server, runtime.Report{Observed: view(running("c", 0)), Probes: runtime.PodProbeResults{"c-0": {Startup: runtime.ProbeSuccess, Readiness: runtime.ProbeFailure}}})
		assert.False(t, st.ContainerStatuses[0].Ready)
		st = m.Observe(job, runtime.Report{Observed: view()})
		assert.Equal(t, corev1.PodFailed, st.Phase)
		assert.Equal(t, int32(3), st.ContainerStatuses[0].State.Terminated.ExitCode)
		pause(time.Minute)
		assert.Len(t, sink.phases, 2, "this process has not told them before")
	})
	process(t, func(m *status.Manager, sink *fakeSink) {
		m.Forget(job.UID) // no source contains it any more
		pause(time.Minute)
		assert.Equal(t, []types.UID{job.UID}, sink.deleted)
		assert.Empty(t, sink.phases, "its status was told")
	})
	process(t, func(m *status.Manager, _ *fakeSink) {
		assert.Len(t, m.PodUIDs(), 1)
		_, known := m.Get(job.UID)
		assert.False(t, known)
	})
}

// A pod that was not admitted is failed for good, and can be forgotten at once.
func TestManager_Reject(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sink := newFakeSink()
		m, stop := start(t, status.Config{Sinks: []status.Sink{sink}})
		p := pod("init:i", "main:c")
		st := m.Reject(p, "OutOfcpu", "Node didn't have enough resource: cpu")
		assert.Equal(t, corev1.PodFailed, st.Phase)
		assert.Equal(t, "OutOfcpu", st.Reason)
		assert.Equal(t, "Pod was rejected: Node didn't have enough resource: cpu", st.Message)
		assert.NotNil(t, st.StartTime)
		assert.Empty(t, st.InitContainerStatuses, "nothing waits to be started")
		assert.Empty(t, st.ContainerStatuses)
		assert.Equal(t, st, m.Observe(p, runtime.Report{Finished: true}), "the next process may finish it once more")
		pause(time.Second)
		m.Forget(p.UID)
		pause(time.Second)
		assert.Equal(t, []corev1.PodPhase{corev1.PodFailed}, sink.phases[p.UID])
		assert.Len(t, sink.deleted, 1)
		require.NoError(t, stop())
	})
}

// A deletion that fails is sent again, without the status before it.
func TestDeletionIsRetried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sink := &stubborn{fakeSink: newFakeSink(), fails: 3}
		m, stop := start(t, status.Config{Sinks: []status.Sink{sink}})
		p := pod("policy=Never", "main:c")
		m.Observe(p, runtime.Report{Observed: view(exited("c", 0, 0)), Finished: true})
		m.Forget(p.UID)
		pause(time.Minute)
		assert.Zero(t, sink.fails)
		assert.Equal(t, []corev1.PodPhase{corev1.PodSucceeded}, sink.phases[p.UID])
		assert.Len(t, sink.deleted, 1)
		assert.Empty(t, m.PodUIDs())
		require.NoError(t, stop())
	})
}

// stubborn fails the first deletions.
type stubborn struct {
	*fakeSink
	fails int
}

func (s *stubborn) DeleteStatus(ctx context.Context, pod *corev1.Pod) error {
	if s.fails > 0 {
		s.fails--
		return errors.New("not now")
	}
	return s.fakeSink.DeleteStatus(ctx, pod)
}
