package agent_test

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sublet-dev/agent"
	"github.com/sublet-dev/agent/internal/agenttest"
	"github.com/sublet-dev/agent/node"
	"github.com/sublet-dev/agent/podsource"
)

// deletionsSink is agenttest.Statuses that records the deleted pods.
type deletionsSink struct {
	agenttest.Statuses
	deleted chan string
}

func newDeletionsSink() *deletionsSink { return &deletionsSink{deleted: make(chan string, 10)} }

func (s *deletionsSink) DeleteStatus(_ context.Context, pod *corev1.Pod) error {
	s.deleted <- pod.Name
	return nil
}

func (s *deletionsSink) take() (names []string) {
	synctest.Wait()
	for len(s.deleted) > 0 {
		names = append(names, <-s.deleted)
	}
	return names
}

// eventsOf records the reasons of the events of one pod, and of its node.
type eventsOf struct {
	pod     string
	reasons chan string
}

func (e eventsOf) Record(event *corev1.Event) {
	if o := event.InvolvedObject; o.Name == e.pod || o.Kind == "Node" && event.Reason == podsource.ReasonInvalid {
		e.reasons <- o.Kind + " " + event.Reason
	}
}

// invalidVersion returns a pod with a field that no node has.
func invalidVersion(pod *corev1.Pod) *corev1.Pod {
	pod = pod.DeepCopy()
	pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: "two", VolumeSource: corev1.VolumeSource{
		EmptyDir: &corev1.EmptyDirVolumeSource{}, ConfigMap: &corev1.ConfigMapVolumeSource{},
	}})
	return pod
}

func deletedVersion(pod *corev1.Pod) *corev1.Pod {
	pod = pod.DeepCopy()
	pod.DeletionTimestamp, pod.DeletionGracePeriodSeconds = new(metav1.Now()), new(int64(5))
	return pod
}

// SR-11: an invalid pod of another owner is Failed and can be deleted, and the node is
// otherwise as it would be without it.
func TestAgent_RejectsInvalidPod(t *testing.T) {
	agenttest.OnMachine(t, node.Config{}, func(t *testing.T, m *agenttest.Machine) {
		a := m.Start(agent.WithSource("api", podsource.NewMemory())) // makes the root directory
		time.Sleep(time.Minute)
		a.Stop()
		orphan := filepath.Join(m.Root, "pods", "orphan")
		require.NoError(t, os.MkdirAll(orphan, 0o700))
		sink, events := newDeletionsSink(), eventsOf{"bad", make(chan string, 100)}
		bad := invalidVersion(agenttest.Pod("bad"))
		src := podsource.NewMemory(bad, agenttest.Pod("web"))
		a = m.Start(agent.WithSource("api", podsource.NotStatic(src)), agent.WithStatusSink(sink), agent.WithRecorder(events))
		defer a.Stop()
		time.Sleep(time.Minute)
		synctest.Wait()
		st := sink.Of("bad")
		assert.Equal(t, corev1.PodFailed, st.Phase)
		assert.Equal(t, "InvalidPod", st.Reason)
		assert.Contains(t, st.Message, "spec.volumes[0]")
		require.Len(t, events.reasons, 1)
		assert.Equal(t, "Pod InvalidPod", <-events.reasons)
		assert.Equal(t, corev1.PodRunning, sink.Of("web").Phase)
		assert.NoDirExists(t, orphan, "cleanup does not wait for the pod")

		src.Put(deletedVersion(bad))
		time.Sleep(time.Minute)
		assert.Equal(t, []string{"bad"}, sink.take())
		src.Delete("default", "bad")
		time.Sleep(time.Minute)
		assert.Empty(t, sink.take())
		assert.Equal(t, []string{"web"}, m.Running())
	})
}

// SR-11: what runs is not ended because a later process finds its pod invalid.
func TestAgent_LeavesRunningInvalidPodAlone(t *testing.T) {
	for name, tt := range map[string]struct {
		then    func(m *agenttest.Machine, src *podsource.Memory)
		running []string
		phase   corev1.PodPhase
		deleted []string
	}{
		"it stays": {func(*agenttest.Machine, *podsource.Memory) {}, []string{"web"}, corev1.PodRunning, nil},
		"it is deleted": {func(_ *agenttest.Machine, src *podsource.Memory) {
			src.Put(deletedVersion(invalidVersion(agenttest.Pod("web"))))
		}, []string{}, corev1.PodFailed, []string{"web"}},
		"it is removed": {func(_ *agenttest.Machine, src *podsource.Memory) { src.Delete("default", "web") }, []string{}, corev1.PodFailed, []string{"web"}},
		"it is valid again": {func(m *agenttest.Machine, src *podsource.Memory) {
			src.Put(agenttest.Pod("web"))
			time.Sleep(time.Minute)
			m.StopContainers()
		}, []string{"web"}, corev1.PodRunning, nil},
		"the machine restarts": {nil, []string{}, corev1.PodFailed, nil},
	} {
		t.Run(name, func(t *testing.T) {
			agenttest.OnMachine(t, node.Config{}, func(t *testing.T, m *agenttest.Machine) {
				sink, events := newDeletionsSink(), eventsOf{"web", make(chan string, 100)}
				web := agenttest.Pod("web")
				src := podsource.NewMemory(web)
				opts := []agent.Option{agent.WithSource("api", podsource.NotStatic(src)), agent.WithStatusSink(sink)}
				a := m.Start(opts...)
				time.Sleep(time.Minute)
				a.Stop()
				require.Equal(t, []string{"web"}, m.Running())

				src.Put(invalidVersion(web))
				if tt.then == nil {
					defer m.Boot()()
				}
				a = m.Start(append(opts, agent.WithRecorder(events))...)
				defer a.Stop()
				time.Sleep(10 * time.Minute)
				if tt.then != nil {
					require.Equal(t, []string{"web"}, m.Running())
					require.Len(t, events.reasons, 1)
					assert.Equal(t, "Pod InvalidPod", <-events.reasons)
					tt.then(m, src)
				}
				time.Sleep(10 * time.Minute)
				synctest.Wait()
				assert.Equal(t, tt.running, m.Running())
				assert.Equal(t, tt.phase, sink.Of("web").Phase)
				assert.Equal(t, tt.deleted, sink.take())
			})
		})
	}
}

// SR-11: the status of an invalid pod that runs follows its containers, whose spec is that of the
// process that started it.
func TestAgent_ReportsContainersOfRunningInvalidPod(t *testing.T) {
	for name, tt := range map[string]struct {
		before, after []string // containers that end before the agent starts, and later
		want          corev1.PodPhase
		running       []string
	}{
		"none ends":                      {nil, nil, corev1.PodRunning, []string{"web", "web"}},
		"one ends":                       {nil, []string{"main"}, corev1.PodRunning, []string{"web"}},
		"one has ended without an agent": {[]string{"main"}, nil, corev1.PodRunning, []string{"web"}},
		"all end, but not the sandbox":   {[]string{"main"}, []string{"second"}, corev1.PodFailed, []string{}},
	} {
		t.Run(name, func(t *testing.T) {
			agenttest.OnMachine(t, node.Config{}, func(t *testing.T, m *agenttest.Machine) {
				sink := newDeletionsSink()
				web := agenttest.PodWithPolicy("web", corev1.RestartPolicyNever)
				web.Spec.Containers = append(web.Spec.Containers, corev1.Container{Name: "second", Image: "app:1"})
				web.Spec.Containers[1].ReadinessProbe = &corev1.Probe{ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"true"}}}}
				src := podsource.NewMemory(web)
				opts := []agent.Option{agent.WithSource("api", podsource.NotStatic(src)), agent.WithStatusSink(sink)}
				a := m.Start(opts...)
				time.Sleep(time.Minute)
				a.Stop()
				require.True(t, isReady(sink.Of("web")))

				for _, c := range tt.before {
					m.StopContainer(c)
				}
				src.Put(invalidVersion(web))
				a = m.Start(opts...)
				defer a.Stop()
				time.Sleep(time.Minute)
				assert.Equal(t, tt.before == nil, isReady(sink.Of("web")))
				for _, c := range tt.after {
					m.StopContainer(c)
				}
				time.Sleep(time.Minute)
				synctest.Wait()
				st := sink.Of("web")
				assert.Equal(t, tt.want, st.Phase)
				assert.Equal(t, tt.before == nil && tt.after == nil, isReady(st))
				assert.Equal(t, tt.running, m.Running())
				require.Len(t, st.ContainerStatuses, 2)
				for _, c := range st.ContainerStatuses {
					ended := slices.Contains(slices.Concat(tt.before, tt.after), c.Name)
					assert.Equal(t, ended, c.State.Terminated != nil, c.Name)
					assert.Equal(t, !ended, c.Ready, c.Name)
				}
			})
		})
	}
}

func isReady(st corev1.PodStatus) bool {
	return slices.ContainsFunc(st.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}
