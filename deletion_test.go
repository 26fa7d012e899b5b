package agent_test

import (
	"context"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sublet-dev/agent"
	"github.com/sublet-dev/agent/internal/agenttest"
	"github.com/sublet-dev/agent/node"
	"github.com/sublet-dev/agent/podsource"
)

// phasesSink records the phases of a pod and its deletion. Pending is left out, because
// it can be merged into the next status.
type phasesSink struct {
	mu    sync.Mutex
	lines []string
}

func (s *phasesSink) add(l string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lines = append(s.lines, l)
}

func (s *phasesSink) all() []string {
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.lines)
}

func (s *phasesSink) SetStatus(_ context.Context, _ *corev1.Pod, st corev1.PodStatus) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if l := string(st.Phase); st.Phase != corev1.PodPending && (len(s.lines) == 0 || s.lines[len(s.lines)-1] != l) {
		s.lines = append(s.lines, l)
	}
	return nil
}

func (s *phasesSink) DeleteStatus(context.Context, *corev1.Pod) error {
	s.add("deleted")
	return nil
}

// ST-8: a pod with a deletion timestamp stays in its source, as with an API server,
// until the agent reports that it is deleted. It does so once, also after a restart.
func TestAgent_ReportsDeletionOfAPodStillInItsSource(t *testing.T) {
	for name, tt := range map[string]struct {
		pod  *corev1.Pod
		want []string
	}{
		"it runs":                {agenttest.Pod("web"), []string{"Running", "mark", "Failed", "deleted"}},
		"it has finished before": {agenttest.PodWithPolicy("web", corev1.RestartPolicyNever, "run-for=1s"), []string{"Running", "Succeeded", "mark", "deleted"}},
	} {
		t.Run(name, func(t *testing.T) {
			agenttest.OnMachine(t, node.Config{}, func(t *testing.T, n *agenttest.Machine) {
				var sink phasesSink
				src := podsource.NewMemory(tt.pod)
				a := n.Start(agent.WithSource("http", src), agent.WithStatusSink(&sink))
				time.Sleep(time.Minute)
				sink.add("mark")
				marked := tt.pod.DeepCopy()
				marked.DeletionTimestamp, marked.DeletionGracePeriodSeconds = new(metav1.Now()), new(int64(5))
				src.Put(marked)
				time.Sleep(10 * time.Minute)
				require.Equal(t, tt.want, sink.all())
				src.Delete("default", "web")
				time.Sleep(10 * time.Minute)
				assert.Equal(t, tt.want, sink.all(), "the deletion was reported already")
				a.Stop()
			})
		})
	}
}

// lastSink has the last status of a pod.
type lastSink struct {
	mu sync.Mutex
	st corev1.PodStatus
}

func (s *lastSink) SetStatus(_ context.Context, _ *corev1.Pod, st corev1.PodStatus) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.st = st
	return nil
}

func (s *lastSink) end(t *testing.T) *corev1.ContainerStateTerminated {
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	require.Len(t, s.st.ContainerStatuses, 1)
	end := s.st.ContainerStatuses[0].State.Terminated
	require.NotNil(t, end, "%+v", s.st)
	return end
}

// ST-5: a pod that is deleted and has finished stays in its source for a finalizer, or because its API server is
// away. The next agent knows how its containers ended, although after a boot the runtime does not have them any
// more, and the status that its source has is an old one.
func TestAgent_KeepsTheEndOfADeletedPodStillInItsSource(t *testing.T) {
	for name, boots := range map[string]bool{"the agent is replaced": false, "the machine boots": true} {
		t.Run(name, func(t *testing.T) {
			agenttest.OnMachine(t, node.Config{}, func(t *testing.T, m *agenttest.Machine) {
				pod := agenttest.PodWithPolicy("job", corev1.RestartPolicyNever, "term-exit-code=3", "termination-message=disk is full")
				src, before, after := podsource.NewMemory(pod), &lastSink{}, &lastSink{}
				a := m.Start(agent.WithSource("http", src), agent.WithStatusSink(before))
				time.Sleep(time.Minute)
				marked := pod.DeepCopy()
				marked.DeletionTimestamp, marked.DeletionGracePeriodSeconds = new(metav1.Now()), new(int64(60))
				src.Put(marked)
				time.Sleep(10 * time.Minute)
				want := before.end(t)
				require.Equal(t, []any{int32(3), "disk is full"}, []any{want.ExitCode, want.Message})
				a.Stop()
				if boots {
					defer m.Boot()()
				}

				a = m.Start(agent.WithSource("http", src), agent.WithStatusSink(after))
				time.Sleep(10 * time.Minute)
				assert.True(t, equality.Semantic.DeepEqual(want, after.end(t)), "%+v", after.end(t))
				src.Delete("default", "job")
				time.Sleep(10 * time.Minute)
				a.Stop()
				left, err := filepath.Glob(filepath.Join(m.Root, "statuses", "*"))
				require.NoError(t, err)
				assert.Empty(t, left)
			})
		})
	}
}
