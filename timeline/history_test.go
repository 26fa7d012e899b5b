package timeline

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/podworkers"
	"github.com/sublet-dev/agent/runtime"
)

func newPod(name string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: types.UID("uid-" + name)},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main"}}},
	}
}

func (h *History) admit(names ...string) {
	for _, name := range names {
		h.PodManager().Admitted(newPod(name))
	}
}

func (h *History) remove(names ...string) {
	for _, name := range names {
		h.PodWorkers().PhaseChanged(types.UID("uid-"+name), podworkers.Terminated, podworkers.Finished, podworkers.Deleted)
	}
}

func names(pods []Pod) (all []string) {
	for i := range pods {
		all = append(all, pods[i].Name)
	}
	return all
}

// backOff adds an entry that differs from all before.
func (h *History) backOff(pod *corev1.Pod, i int) {
	h.PodSync().BackOffStarted(pod, "main", runtime.Failure{Reason: "CrashLoopBackOff", Message: fmt.Sprint(i), Until: time.Now().Add(time.Second)})
}

func TestHistory_KeepsFirstAndLastEntries(t *testing.T) {
	h := New(Config{MaxPodEntries: 40})
	h.admit("web")
	pod := newPod("web")
	for i := range 100 {
		h.backOff(pod, i)
	}
	tl, ok := h.Pod(pod.UID)
	require.True(t, ok)
	assert.Len(t, tl.Entries, 40)
	assert.Equal(t, 62, tl.Dropped)
	assert.Equal(t, KindReceived, tl.Entries[0].Kind)
	assert.Equal(t, "13", tl.Entries[15].Message, "the last of the first")
	assert.Equal(t, "76", tl.Entries[16].Message)
	assert.Equal(t, "99", tl.Entries[39].Message)
	assert.Equal(t, 40, h.entries)
	_, ok = h.Pod("unknown")
	assert.False(t, ok)
}

func TestHistory_BoundsAllEntries(t *testing.T) {
	h := New(Config{MaxPodEntries: 40, MaxEntries: 100})
	h.admit("gone", "a", "b", "c")
	h.remove("gone")
	for i := range 36 {
		h.backOff(newPod("a"), i)
		h.backOff(newPod("b"), i)
	}
	assert.Equal(t, []string{"a", "b", "c", "gone"}, names(h.Pods()))
	for i := range 38 {
		h.backOff(newPod("c"), i)
	}
	assert.Equal(t, []string{"a", "b", "c"}, names(h.Pods()), "a pod that is gone makes room first")
	assert.Equal(t, 100, h.entries)
	counted := 0
	for _, name := range []string{"a", "b", "c"} {
		tl, _ := h.Pod(types.UID("uid-" + name))
		counted += len(tl.Entries)
		assert.Equal(t, KindReceived, tl.Entries[0].Kind)
		assert.GreaterOrEqual(t, len(tl.Entries), 32, "those that have most give room")
	}
	assert.Equal(t, 100, counted)
}

// The entry that says that a pod is gone makes room by others, also when no other is gone:
// what is added to a forgotten pod would be counted and never dropped.
func TestHistory_CountsWhatItHas(t *testing.T) {
	h := New(Config{MaxPodEntries: 32, MaxEntries: 64})
	h.admit("a", "b", "c")
	for i := range 100 {
		for j := range 30 {
			for _, name := range []string{"a", "b", "c"} {
				h.backOff(newPod(name), i*30+j)
			}
		}
		job := fmt.Sprint("job", i)
		h.admit(job)
		h.remove(job)
		h.PodWorkers().PhaseChanged(types.UID("uid-"+job), podworkers.Syncing, podworkers.Terminating, podworkers.Deleted) // late
		counted := 0
		for _, r := range h.pods {
			counted += len(r.entries)
		}
		require.Equal(t, counted, h.entries)
		require.LessOrEqual(t, counted, 64)
		require.Equal(t, []string{"a", "b", "c", job}, names(h.Pods()), "it is there until others need the room")
	}
}

// What makes room is found as if all records were looked through.
func TestHistory_MakesRoomInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rnd := rand.New(rand.NewPCG(1, 1))
		h := New(Config{MaxPods: 12, MaxPodEntries: 32, MaxEntries: 200})
		for i := range 5000 {
			switch name := fmt.Sprint("p", rnd.IntN(20)); rnd.IntN(4) {
			case 0:
				h.admit(name)
			case 1:
				h.remove(name)
			default:
				h.backOff(newPod(name), i)
			}
			time.Sleep(time.Millisecond)

			var changed, deleted, longest *podRecord
			count := 0
			for _, r := range h.pods {
				if changed == nil || r.Version < changed.Version {
					changed = r
				}
				if !r.DeletedAt.IsZero() {
					count++
					if deleted == nil || r.DeletedAt.Before(deleted.DeletedAt) {
						deleted = r
					}
				}
				if longest == nil || len(r.entries) > len(longest.entries) {
					longest = r
				}
			}
			require.Same(t, changed, h.ranks.changed.First())
			require.Same(t, deleted, h.ranks.oldestDeleted(nil))
			if another := h.ranks.oldestDeleted(deleted); deleted != nil && another != nil {
				require.NotSame(t, deleted, another)
			}
			require.Len(t, longest.entries, len(h.ranks.longest.First().entries))
			require.Equal(t, []int{len(h.pods), count, len(h.pods)}, []int{h.ranks.changed.Len(), h.ranks.deleted.Len(), h.ranks.longest.Len()})
		}
	})
}

func TestHistory_BoundsPods(t *testing.T) {
	h := New(Config{MaxPods: 3})
	h.admit("a", "b", "c")
	h.remove("c", "b")
	h.admit("d")
	assert.Equal(t, []string{"a", "b", "d"}, names(h.Pods()), "the oldest that is gone")
	h.admit("e")
	assert.Equal(t, []string{"a", "d", "e"}, names(h.Pods()))
	h.backOff(newPod("a"), 1)
	h.admit("f")
	assert.Equal(t, []string{"a", "e", "f"}, names(h.Pods()), "the one that has not changed for longest")
}

// A pod that comes again is not gone.
func TestHistory_RecreatedPod(t *testing.T) {
	h := New(Config{})
	h.admit("web")
	h.remove("web")
	assert.Equal(t, Deleted, h.Pods()[0].Health)
	h.admit("web")
	assert.Zero(t, h.Pods()[0].DeletedAt)
	tl, _ := h.Pod("uid-web")
	assert.Equal(t, KindAdmitted, tl.Entries[len(tl.Entries)-1].Kind)
}

// A pod that was completed is gone when its status is cleaned up.
func TestHistory_DeletedWithItsStatus(t *testing.T) {
	h := New(Config{})
	h.admit("job")
	for phase, from := podworkers.Terminating, podworkers.Syncing; phase <= podworkers.Finished; phase, from = phase+1, phase {
		h.PodWorkers().PhaseChanged("uid-job", from, phase, podworkers.Completed)
	}
	cleaned := h.Housekeeper().StoreCleaned
	cleaned("cgroups", "uid-job", nil)
	cleaned("statuses", "uid-job", errors.New("disk full"))
	cleaned("statuses", "unknown", nil)
	assert.Zero(t, h.Pods()[0].DeletedAt)
	assert.Equal(t, "Pending", h.Pods()[0].State, "one that completes is not terminated")
	cleaned("statuses", "uid-job", nil)
	cleaned("statuses", "uid-job", nil)
	assert.NotZero(t, h.Pods()[0].DeletedAt)
	tl, _ := h.Pod("uid-job")
	assert.Len(t, tl.Entries, 6)
}

// A reader gets what is new since its version, and everything if that is not known.
func TestHistory_Changes(t *testing.T) {
	h := New(Config{MaxPods: 2})
	c := h.Changes(0)
	assert.True(t, c.Reset)
	h.admit("a", "b")
	c = h.Changes(0)
	assert.Len(t, c.Pods, 2)
	version := c.Version
	c = h.Changes(version)
	assert.False(t, c.Reset)
	assert.Empty(t, c.Pods)
	h.remove("a")
	h.AddSample(Sample{MilliCPU: 7})
	c = h.Changes(version)
	assert.Equal(t, []string{"a"}, names(c.Pods))
	assert.Equal(t, []Sample{{MilliCPU: 7}}, c.Node.Samples)
	assert.Empty(t, h.Changes(c.Version).Node.Samples)
	h.admit("c")
	c = h.Changes(c.Version)
	assert.Equal(t, []string{"c"}, names(c.Pods))
	assert.Equal(t, []types.UID{"uid-a"}, c.Forgotten)

	assert.True(t, h.Changes(c.Version+1).Reset, "of another process")
	for i := range maxForgotten + 1 {
		h.admit(fmt.Sprint("x", i))
	}
	assert.True(t, h.Changes(version).Reset, "the reader has missed what was forgotten")
	assert.Len(t, h.forgotten, maxForgotten)
}

func TestHistory_ForgetsAged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := New(Config{DeletedAge: time.Minute})
		h.admit("a", "b")
		h.remove("a")
		time.Sleep(time.Minute)
		assert.Len(t, h.Pods(), 2)
		time.Sleep(time.Second)
		assert.Equal(t, []string{"b"}, names(h.Pods()))
		assert.Equal(t, 2, h.entries)
	})
}

func TestHistory_Wait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := New(Config{})
		h.admit("a")
		require.NoError(t, h.Wait(t.Context(), 0), "it is behind")
		version := h.Changes(0).Version
		var woken sync.WaitGroup
		for range 3 {
			woken.Go(func() { assert.NoError(t, h.Wait(t.Context(), version)) })
		}
		synctest.Wait()
		h.admit("b")
		woken.Wait()
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(errors.New("tired"))
		require.EqualError(t, h.Wait(ctx, h.Changes(0).Version), "tired")
	})
}

// Hooks and readers at once: for the race detector.
func TestHistory_Concurrent(t *testing.T) {
	h := New(Config{MaxPods: 20, MaxPodEntries: 32, MaxEntries: 200})
	ctx, cancel := context.WithCancel(t.Context())
	var readers, writers sync.WaitGroup
	for range 2 {
		readers.Go(func() {
			version := uint64(0)
			for h.Wait(ctx, version) == nil {
				version = h.Changes(version).Version
				h.Pod("uid-3")
			}
		})
	}
	for w := range 4 {
		writers.Go(func() {
			for i := range 300 {
				name := fmt.Sprint((i*7 + w) % 30)
				h.admit(name)
				op := runtime.Operation{Type: runtime.OperationPullImage, Pod: newPod(name)}
				c := h.OperationStarted(ctx, op)
				h.Status().Changed(newPod(name), corev1.PodStatus{}, corev1.PodStatus{Phase: corev1.PodRunning})
				h.OperationEnded(c, op, time.Second, nil)
				h.remove(name)
				h.AddSample(Sample{})
			}
		})
	}
	writers.Wait()
	cancel()
	readers.Wait()
	assert.LessOrEqual(t, len(h.pods), 20)
	assert.LessOrEqual(t, h.entries, 200)
	assert.Len(t, h.node.samples, maxSamples)
}

func TestHistory_CountsRepeatedFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, pod := New(Config{}), newPod("web")
		for range 3 {
			h.PodSync().VolumesMounted(pod, 2, time.Second, errors.New("no disk"))
			time.Sleep(10 * time.Second)
		}
		h.PodSync().VolumesMounted(pod, 2, time.Second, nil)
		tl, _ := h.Pod(pod.UID)
		require.Len(t, tl.Entries, 2)
		assert.Equal(t, 3, tl.Entries[0].Count)
		assert.Equal(t, "no disk", tl.Entries[0].Message)
		assert.Equal(t, 21*time.Second, tl.Entries[0].End.Sub(tl.Entries[0].Start))
		assert.Equal(t, 2, tl.Entries[1].Volumes)
		assert.Equal(t, time.Second, tl.Entries[1].End.Sub(tl.Entries[1].Start))
	})
}

// Only failures of a sync that ran to its end count.
func TestHistory_SyncFailed(t *testing.T) {
	h, pod := New(Config{}), newPod("web")
	ended := h.PodWorkers().SyncEnded
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	ended(t.Context(), podworkers.SyncCall{Pod: pod}, time.Second, runtime.SyncResult{}, nil)
	ended(cancelled, podworkers.SyncCall{Pod: pod}, time.Second, runtime.SyncResult{}, errors.New("cancelled"))
	ended(t.Context(), podworkers.SyncCall{}, time.Second, runtime.SyncResult{}, errors.New("no pod"))
	assert.Empty(t, h.Pods())
	ended(t.Context(), podworkers.SyncCall{Pod: pod}, time.Second, runtime.SyncResult{}, errors.New("cgroup is busy"))
	tl, _ := h.Pod(pod.UID)
	require.Len(t, tl.Entries, 1)
	assert.Equal(t, "cgroup is busy", tl.Entries[0].Message)
}

// An operation is an entry while it lasts. Those of pods without a UID, and of unknown
// types, are not.
func TestHistory_Operations(t *testing.T) {
	h, pod := New(Config{}), newPod("web")
	op := runtime.Operation{Type: runtime.OperationPullImage, Pod: pod, Image: "app:1"}
	ctx := h.OperationStarted(t.Context(), op)
	tl, _ := h.Pod(pod.UID)
	require.Len(t, tl.Entries, 1)
	assert.Zero(t, tl.Entries[0].End)
	op.ImageBytes = 77
	h.OperationEnded(ctx, op, 0, nil)
	h.OperationEnded(t.Context(), op, 0, nil) // not begun here
	tl, _ = h.Pod(pod.UID)
	require.Len(t, tl.Entries, 1)
	assert.NotZero(t, tl.Entries[0].End)
	assert.EqualValues(t, 77, tl.Entries[0].Bytes)
	for _, op := range []runtime.Operation{{Type: runtime.OperationPullImage}, {Type: "paint image", Pod: pod}, {Type: runtime.OperationPullImage, Pod: &corev1.Pod{}}} {
		assert.Equal(t, t.Context(), h.OperationStarted(t.Context(), op))
	}
	for opType, want := range map[runtime.OperationType]Entry{
		runtime.OperationPostStartHook: {Kind: KindHook, Reason: "postStart"}, runtime.OperationPreStopHook: {Kind: KindHook, Reason: "preStop"},
		runtime.OperationKillContainer: {Kind: KindKill, Reason: "Evicted"}, runtime.OperationStopSandbox: {Kind: KindStopSandbox, Reason: "Evicted"},
		runtime.OperationCreateSandbox: {Kind: KindSandbox, Reason: "Evicted"}, runtime.OperationCreateContainer: {Kind: KindCreate, Reason: "Evicted"},
	} {
		op := runtime.Operation{Type: opType, Pod: pod, Reason: "Evicted", Container: "main"}
		h.OperationEnded(h.OperationStarted(t.Context(), op), op, 0, errors.New("failed"))
		tl, _ := h.Pod(pod.UID)
		e := tl.Entries[len(tl.Entries)-1]
		assert.Equal(t, []any{want.Kind, want.Reason, "main", true, "failed"}, []any{e.Kind, e.Reason, e.Container, e.Failed, e.Message})
	}
}

// A runtime that has no hooks is observed by the statuses of its pods.
func TestHistory_RunsFromStatuses(t *testing.T) {
	h, pod := New(Config{}), newPod("web")
	start := time.Now().Add(-time.Minute)
	running := corev1.PodStatus{Phase: corev1.PodRunning, ContainerStatuses: []corev1.ContainerStatus{{
		Name: "main", ContainerID: "containerd://c1", Ready: true, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(start)}},
	}}}
	unready := *running.DeepCopy()
	unready.ContainerStatuses[0].Ready = false
	for _, st := range []corev1.PodStatus{running, running, unready} {
		h.Status().Changed(pod, corev1.PodStatus{}, st)
	}
	assert.Equal(t, "NotReady", h.Pods()[0].State)
	h.PodSync().ContainerExited(pod, runtime.Container{ID: "c1", Name: "main", ExitCode: 2, Finished: start.Add(time.Second), Reason: "Error", Message: "s3cret"})
	h.PodSync().ContainerExited(pod, runtime.Container{ID: "c2", Name: "main"}) // never ran
	h.PodSync().ContainerExited(pod, runtime.Container{ID: "c3", Name: "main", Started: start.Add(time.Second)})
	tl, _ := h.Pod(pod.UID)
	require.Len(t, tl.Entries, 4)
	run := tl.Entries[0]
	assert.Equal(t, []any{KindRun, "c1", start, start.Add(time.Second), int32(2), true}, []any{run.Kind, run.ContainerID, run.Start, run.End, *run.ExitCode, run.Failed})
	assert.Equal(t, "c3", tl.Entries[1].ContainerID)
	assert.WithinDuration(t, time.Now(), tl.Entries[1].End, time.Minute, "the runtime does not say when it ended")
	assert.False(t, tl.Entries[1].Failed)
	assert.Equal(t, []Kind{KindReady, KindNotReady}, []Kind{tl.Entries[2].Kind, tl.Entries[3].Kind})
	assert.NotContains(t, fmt.Sprintf("%+v", tl), "s3cret", "what the container has written is not shown")
}

func TestClip(t *testing.T) {
	assert.Equal(t, "short", clip("short", 5))
	for limit := 4; limit < 40; limit++ {
		got := clip(strings.Repeat("aé漢😀", 10), limit)
		assert.True(t, utf8.ValidString(got), got)
		assert.LessOrEqual(t, len(got), limit)
		assert.True(t, strings.HasSuffix(got, "…"))
		assert.Greater(t, len(got), limit-4-3)
	}
}

// A History with a thousand pods that crash all the time stays small.
func TestHistory_Memory(t *testing.T) {
	h := New(Config{})
	for i := range 1000 {
		pod := newPod(fmt.Sprint("p", i))
		h.admit(pod.Name)
		for j := range 60 {
			h.PodSync().BackOffStarted(pod, "main", runtime.Failure{Message: strings.Repeat("x", 300) + fmt.Sprint(j)})
		}
	}
	assert.Equal(t, 40000, h.entries)
	assert.Len(t, h.pods, 1000)
}
