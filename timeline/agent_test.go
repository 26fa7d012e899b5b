package timeline_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sublet-dev/agent"
	"github.com/sublet-dev/agent/node"
	"github.com/sublet-dev/agent/podsource"
	"github.com/sublet-dev/agent/runtime/embedded/simulated"
	"github.com/sublet-dev/agent/timeline"
)

func hooksOf(h *timeline.History) agent.Hooks {
	return agent.Hooks{
		PodManager: h.PodManager(), PodWorkers: h.PodWorkers(), PodSync: h.PodSync(), Status: h.Status(), Housekeeper: h.Housekeeper(),
		CRI: h.CRI(), Eviction: h.Eviction(), ImageGC: h.ImageGC(), ContainerGC: h.ContainerGC(),
	}
}

// newScriptedPod returns a pod with a container "main", scripted by "key=value".
func newScriptedPod(name string, script ...string) *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: "", Annotations: map[string]string{}},
		Spec: corev1.PodSpec{
			Containers: []corev1.Container{{
				Name: "main", Image: "registry.example/app:1", VolumeMounts: []corev1.VolumeMount{{Name: "data", MountPath: "/data"}},
				Env: []corev1.EnvVar{{Name: "PASSWORD", Value: "s3cret"}}, Command: []string{"serve", "--token=s3cret"},
			}},
			Volumes: []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}},
		},
	}
	for _, s := range script {
		key, value, _ := strings.Cut(s, "=")
		pod.Annotations[simulated.ScriptPrefix+key] = value
	}
	return pod
}

// events are those that an agent records.
type events struct {
	mu   sync.Mutex
	list []*corev1.Event
}

func (e *events) Record(event *corev1.Event) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.list = append(e.list, event)
}

// first returns when an event with a reason was recorded first.
func (e *events) first(t *testing.T, reason string) time.Time {
	t.Helper()
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, event := range e.list {
		if event.Reason == reason {
			return event.FirstTimestamp.Time
		}
	}
	t.Fatalf("no event %s", reason)
	return time.Time{}
}

// runAgent runs an agent on a simulated runtime. The result stops it.
func runAgent(t *testing.T, h *timeline.History, memory *podsource.Memory, recorder agent.Recorder) (stop func()) {
	t.Helper()
	a, err := agent.New(
		agent.WithSource("memory", memory), agent.WithNode(node.Config{DisableCgroups: true}), agent.WithRootDir(t.TempDir()),
		agent.WithSimulatedRuntime(), agent.WithHooks(hooksOf(h)), agent.WithRecorder(recorder),
	)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- a.Run(ctx) }()
	return func() {
		cancel()
		require.NoError(t, <-done)
		synctest.Wait()
	}
}

// kinds returns the kinds of entries in their order.
func kinds(entries []timeline.Entry) (all []timeline.Kind) {
	for i := range entries {
		all = append(all, entries[i].Kind)
	}
	return all
}

func entry(t *testing.T, entries []timeline.Entry, kind timeline.Kind) timeline.Entry {
	t.Helper()
	for i := range entries {
		if entries[i].Kind == kind {
			return entries[i]
		}
	}
	t.Fatalf("no entry of kind %q in %v", kind, kinds(entries))
	return timeline.Entry{}
}

// relative writes each entry as kind, container, start and duration since a time.
func relative(entries []timeline.Entry, since time.Time) (lines []string) {
	for i := range entries {
		e := &entries[i]
		line := fmt.Sprint(e.Kind, " ", e.Container, " ", e.Start.Sub(since))
		switch {
		case e.End.IsZero():
			line += " …"
		case !e.End.Equal(e.Start):
			line += fmt.Sprint(" +", e.End.Sub(e.Start))
		}
		if e.ExitCode != nil {
			line += fmt.Sprint(" exit ", *e.ExitCode)
		}
		lines = append(lines, strings.Join(strings.Fields(line+" "+e.Reason), " "))
	}
	return lines
}

// A pod comes, crashes, backs off and goes: each step is an entry, at the time of the
// event that the agent records for it.
func TestHistory_PodLife(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, memory, recorded := timeline.New(timeline.Config{}), podsource.NewMemory(), &events{}
		stop := runAgent(t, h, memory, recorded)
		start := time.Now()
		time.Sleep(time.Second)
		memory.Put(newScriptedPod("web", "sandbox-delay=2s", "run-for=3s", "exit-code=3", "stop-after=1s"))
		time.Sleep(11 * time.Second) // the second run has ended

		pods := h.Pods()
		require.Len(t, pods, 1)
		assert.Equal(t, "CrashLoopBackOff", pods[0].State)
		assert.Equal(t, timeline.Failing, pods[0].Health)
		assert.Contains(t, pods[0].Message, "back-off 10s")
		assert.EqualValues(t, 1, pods[0].Restarts)
		tl, ok := h.Pod(pods[0].UID)
		require.True(t, ok)
		lines := relative(tl.Entries, start)
		require.Greater(t, len(lines), 5)
		slices.Sort(lines[3:5]) // the image is pulled while the sandbox is made: both begin at once
		assert.Equal(t, []string{
			"seen 1s", "admitted 1s", "volumes 1s", "pull 1s", "sandbox 1s +2s", "create main 3s", "start main 3s",
			"run main 3s +3s exit 3 Error", "ready main 3s", "create main 6s", "start main 6s", "run main 6s +3s exit 3 Error", "ready main 6s",
			"back-off main 9s +10s CrashLoopBackOff",
		}, lines)
		for kind, reason := range map[timeline.Kind]string{
			timeline.KindPull: "Pulling", timeline.KindCreate: "Created", timeline.KindRun: "Started", timeline.KindBackOff: "BackOff",
		} {
			assert.WithinDuration(t, recorded.first(t, reason), entry(t, tl.Entries, kind).Start, 50*time.Millisecond, reason)
		}
		assert.NotContains(t, fmt.Sprintf("%+v", tl), "s3cret")

		time.Sleep(8 * time.Second) // the third run has begun
		memory.Delete("default", "web")
		time.Sleep(5 * time.Second)
		tl, _ = h.Pod(pods[0].UID)
		assert.Equal(t, timeline.Deleted, tl.Health)
		assert.Equal(t, []string{
			"create main 19s", "start main 19s", "run main 19s +2s exit 143 Error", "ready main 19s",
			"terminating 20s Removed", "kill main 20s +1s PodDeleted", "stop sandbox 21s PodDeleted", "terminated 21s", "finished 21s", "gone 21s",
		}, relative(tl.Entries[14:], start))
		assert.WithinDuration(t, recorded.first(t, "Killing"), entry(t, tl.Entries, timeline.KindKill).Start, 50*time.Millisecond)

		time.Sleep(time.Hour) // nothing changes any more: it is forgotten at the next query
		assert.Empty(t, h.Pods())
		stop()
	})
}

// A pod that the node rejects says why.
func TestHistory_RejectedPod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, memory := timeline.New(timeline.Config{}), podsource.NewMemory()
		stop := runAgent(t, h, memory, &events{})
		pod := newScriptedPod("web")
		pod.Spec.NodeSelector = map[string]string{"disk": "fast"}
		memory.Put(pod)
		time.Sleep(5 * time.Second)
		pods := h.Pods()
		require.Len(t, pods, 1)
		assert.Equal(t, timeline.Failing, pods[0].Health)
		tl, _ := h.Pod(pods[0].UID)
		rejected := entry(t, tl.Entries, timeline.KindRejected)
		assert.NotEmpty(t, rejected.Reason)
		assert.NotEmpty(t, rejected.Message)
		assert.True(t, rejected.Failed)
		assert.Equal(t, rejected.Reason, pods[0].State)
		stop()
	})
}

// A pod that gives way to a critical one says to which.
func TestHistory_PreemptedPod(t *testing.T) {
	h := timeline.New(timeline.Config{})
	pod, critical := newScriptedPod("web"), newScriptedPod("critical")
	pod.UID = "uid-web"
	h.PodManager().Preempted(pod, critical, corev1.ResourceMemory)
	tl, _ := h.Pod(pod.UID)
	evicted := entry(t, tl.Entries, timeline.KindEvicted)
	assert.Equal(t, "Preempting", evicted.Reason)
	assert.Equal(t, "For pod "+critical.Namespace+"/critical, which lacked memory", evicted.Message)
	assert.True(t, evicted.Failed)
}
