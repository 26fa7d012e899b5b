package podsync_test

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/podsync"
	"github.com/sublet-dev/agent/runtime"
)

// newLog returns a logger, and a function that returns the lines since its last call.
func newLog(level slog.Level) (*slog.Logger, func() []string) {
	var buf bytes.Buffer
	opts := &slog.HandlerOptions{Level: level, ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey || a.Key == slog.LevelKey || a.Key == "podUID" {
			return slog.Attr{}
		}
		return a
	}}
	return slog.New(slog.NewTextHandler(&buf, opts)), func() []string {
		defer buf.Reset()
		return strings.FieldsFunc(buf.String(), func(r rune) bool { return r == '\n' })
	}
}

func crashed(id string, attempt uint32) runtime.Container {
	return runtime.Container{
		ID: id, Name: "main", SandboxID: "s", State: runtime.Exited, ExitCode: 3, Reason: "Error", Message: "hunter2", Attempt: attempt,
		BackOffStep: int(attempt), Finished: time.Now(), Hash: runtime.HashContainer(&newTestPod().Spec.Containers[0]),
	}
}

func withContainers(containers ...runtime.Container) runtime.Pod {
	return runtime.Pod{Sandboxes: runningPod(0).Sandboxes, Containers: containers}
}

// Each exit and each back-off is one line in the log, however often it is observed.
func TestSync_LogsExitsAndBackOffs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &fakeNode{phase: corev1.PodRunning}
		cfg := newConfig(t, n)
		logger, lines := newLog(slog.LevelInfo)
		cfg.Logger = logger
		s := newSyncer(t, cfg)
		sync := func(observed runtime.Pod) []string {
			_, err := s.Sync(t.Context(), newTestPod(), observed)
			require.NoError(t, err)
			return lines()
		}
		until := time.Now().Add(10 * time.Second).Format("2006-01-02T15:04:05.000Z07:00")
		first := crashed("c1", 1)
		assert.Equal(t, []string{
			`msg="container exited" pod=default/web containerName=main containerID=c1 attempt=1 exitCode=3 reason=Error`,
			`msg="back-off started" pod=default/web containerName=main reason=CrashLoopBackOff until=` + until,
		}, sync(withContainers(first)))
		time.Sleep(5 * time.Second)
		assert.Empty(t, sync(withContainers(first)), "known")
		assert.Empty(t, sync(withContainers(first, runtime.Container{ID: "c2", Name: "main", State: runtime.Running, SandboxID: "s", Attempt: 2, Hash: first.Hash})))
		time.Sleep(time.Minute)
		second := sync(withContainers(first, crashed("c2", 2)))
		require.Len(t, second, 2)
		assert.Contains(t, second[0], "containerID=c2 attempt=2")
		assert.Contains(t, second[1], "back-off started")

		n.observed = withContainers(crashed("c2", 2), crashed("c3", 3))
		require.NoError(t, s.Terminate(t.Context(), newTestPod(), withContainers(first, crashed("c2", 2)), runtime.Termination{}))
		terminated := lines()
		require.Len(t, terminated, 1)
		assert.Contains(t, terminated[0], "containerID=c3", "what exited during the termination")
	})
}

// A back-off of the sandbox has no container.
func TestSync_LogsBackOffOfRuntime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &fakeNode{phase: corev1.PodPending}
		cfg := newConfig(t, n)
		logger, lines := newLog(slog.LevelInfo)
		cfg.Logger = logger
		s := newSyncer(t, cfg)
		backOff := func(d time.Duration) []string {
			n.applied = runtime.ApplyResult{Failures: map[string]runtime.Failure{
				"":     {Reason: "SandboxBackOff", Until: time.Now().Add(d)},
				"main": {Reason: "Waiting"},
			}}
			_, err := s.Sync(t.Context(), newTestPod(), runtime.Pod{})
			require.NoError(t, err)
			return lines()
		}
		got := backOff(time.Minute)
		require.Len(t, got, 1)
		assert.Contains(t, got[0], `msg="back-off started" pod=default/web reason=SandboxBackOff until=`)
		assert.Empty(t, backOff(time.Minute+time.Second), "the same end but for rounding")
		assert.Len(t, backOff(2*time.Minute), 1)
		assert.Len(t, backOff(time.Minute), 1, "an earlier end is another back-off")
	})
}

// A new process logs the exits that happened while no agent ran, and no older ones.
func TestSync_LogsExitsSincePreviousProcess(t *testing.T) {
	terminated := func(id string) corev1.ContainerState {
		return corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ContainerID: "rt://" + id}}
	}
	for name, tt := range map[string]struct {
		status corev1.ContainerStatus
		want   int
	}{
		"recorded as last state":    {corev1.ContainerStatus{LastTerminationState: terminated("c2")}, 0},
		"recorded as current state": {corev1.ContainerStatus{State: terminated("c2")}, 0},
		"not recorded":              {corev1.ContainerStatus{LastTerminationState: terminated("c1")}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			n := &fakeNode{phase: corev1.PodRunning, saved: corev1.PodStatus{Phase: corev1.PodRunning, ContainerStatuses: []corev1.ContainerStatus{tt.status}}}
			cfg := newConfig(t, n)
			logger, lines := newLog(slog.LevelInfo)
			cfg.Logger = logger
			_, err := newSyncer(t, cfg).Sync(t.Context(), newTestPod(), withContainers(crashed("c0", 0), crashed("c2", 2)))
			require.NoError(t, err)
			var exits int
			for _, l := range lines() {
				if strings.Contains(l, "container exited") {
					assert.Contains(t, l, "containerID=c2")
					exits++
				}
			}
			assert.Equal(t, tt.want, exits)
		})
	}
}

// A pod that waits for soft admission is logged once per message, and once when it is
// admitted.
func TestSync_LogsWaitForSoftAdmission(t *testing.T) {
	n, l := &fakeNode{phase: corev1.PodPending}, new(licence)
	cfg := newConfig(t, n)
	logger, lines := newLog(slog.LevelInfo)
	cfg.Logger, cfg.SoftAdmitters = logger, []podsync.SoftAdmitter{l}
	s := newSyncer(t, cfg)
	for range 3 {
		_, err := s.Sync(t.Context(), newTestPod(), runtime.Pod{})
		require.NoError(t, err)
	}
	assert.Equal(t, []string{`msg="pod blocked by soft admission" pod=default/web message="NoLicence: all are in use"`}, lines())
	l.free = true
	for range 3 {
		_, err := s.Sync(t.Context(), newTestPod(), runtime.Pod{})
		require.NoError(t, err)
	}
	assert.Equal(t, []string{`msg="pod unblocked by soft admission" pod=default/web`}, lines())
}

func TestSync_LogsPlanAtDebugLevel(t *testing.T) {
	n := &fakeNode{phase: corev1.PodPending}
	cfg := newConfig(t, n)
	logger, lines := newLog(slog.LevelDebug)
	cfg.Logger = logger
	_, err := newSyncer(t, cfg).Sync(t.Context(), newTestPod(), runtime.Pod{})
	require.NoError(t, err)
	assert.Equal(t, []string{`msg="pod sync planned" pod=default/web actions="[CreateSandbox StartContainer main]"`}, lines())
	unchanged := runningPod(0)
	unchanged.Containers[0].Hash = runtime.HashContainer(&newTestPod().Spec.Containers[0])
	_, err = newSyncer(t, cfg).Sync(t.Context(), newTestPod(), unchanged)
	require.NoError(t, err)
	assert.Empty(t, lines(), "an empty plan")
}

// IM-5: a missing pull secret is logged once.
func TestSync_LogsMissingPullSecret(t *testing.T) {
	n := &fakeNode{phase: corev1.PodPending}
	cfg := newConfig(t, n)
	logger, lines := newLog(slog.LevelInfo)
	cfg.Logger, cfg.Objects = logger, objects{}
	p := newTestPod()
	p.Spec.ImagePullSecrets = []corev1.LocalObjectReference{{}, {Name: "absent"}}
	s := newSyncer(t, cfg)
	for range 2 {
		_, err := s.Sync(t.Context(), p, runtime.Pod{})
		require.NoError(t, err)
	}
	got := lines()
	require.Len(t, got, 1)
	assert.Contains(t, got[0], `msg="image pull secret unavailable" pod=default/web err="get pull secret default/absent: `)
	assert.Len(t, n.events, 1)
}

// AG-9: a Recorder that panics does not fail the sync.
func TestSync_RecorderPanics(t *testing.T) {
	n := &fakeNode{phase: corev1.PodPending, fail: map[string]error{"mount": errors.New("boom")}}
	cfg := newConfig(t, n)
	cfg.Recorder = panickingRecorder{}
	_, err := newSyncer(t, cfg).Sync(t.Context(), newTestPod(), runtime.Pod{})
	require.ErrorContains(t, err, "boom")
}

type panickingRecorder struct{}

func (panickingRecorder) Record(*corev1.Event) { panic("recorder") }
