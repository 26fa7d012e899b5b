package timeline

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/containergc"
	"github.com/sublet-dev/agent/eviction"
	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/podworkers"
	"github.com/sublet-dev/agent/runtime"
)

// last returns the newest entry of a pod.
func (h *History) last(t *testing.T, uid types.UID) Entry {
	t.Helper()
	tl, ok := h.Pod(uid)
	require.True(t, ok)
	require.NotEmpty(t, tl.Entries)
	return tl.Entries[len(tl.Entries)-1]
}

// A pod was received when its source delivered it first, which a clock that was set back
// does not put into the future.
func TestHistory_ReceivedWhenDelivered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		now := time.Now()
		for delivered, want := range map[string]time.Time{
			now.Add(-time.Minute).Format(time.RFC3339Nano): now.Add(-time.Minute), now.Add(time.Minute).Format(time.RFC3339Nano): now, "yesterday": now,
		} {
			h, pod := New(Config{}), newPod("web")
			pod.Annotations = map[string]string{podspec.AnnotationFirstSeen: delivered, podspec.AnnotationSource: "file"}
			h.PodManager().Adopted(pod)
			p := h.Pods()[0]
			assert.True(t, want.Equal(p.ReceivedAt), delivered)
			assert.Equal(t, []any{"file", true}, []any{p.Source, p.Static})
			assert.Equal(t, KindAdopted, h.last(t, pod.UID).Kind)
		}
	})
}

func TestHistory_ClipsTexts(t *testing.T) {
	h, pod, long := New(Config{}), newPod("web"), strings.Repeat("x", 9999)
	h.PodSync().BackOffStarted(pod, long, runtime.Failure{Reason: long, Message: long})
	h.OperationStarted(t.Context(), runtime.Operation{Type: runtime.OperationPullImage, Pod: pod, Image: long})
	tl, _ := h.Pod(pod.UID)
	e, pull := tl.Entries[0], tl.Entries[1]
	assert.Equal(t, []int{maxName, maxReason, maxMessage, maxImage}, []int{len(e.Container), len(e.Reason), len(e.Message), len(pull.Image)})
	h.ContainerGC().Removed(containergc.Removal{UID: types.UID(long), Reason: containergc.Reason(long)}, 0, errors.New(long))
	h.ContainerGC().Collected(containergc.Result{}, nil)
	item := h.Node().Collections[0].Items[0]
	assert.Equal(t, []int{2 * maxName, maxReason, maxMessage}, []int{len(item.Name), len(item.Reason), len(item.Error)})
	assert.Equal(t, "…", clip(strings.Repeat("\x80", 20), 10), "what is no UTF-8")
}

func TestHistory_BoundsEntriesOfShortTimelines(t *testing.T) {
	h := New(Config{MaxPodEntries: 32, MaxEntries: 32})
	for i := range 30 {
		h.admit(fmt.Sprint("p", i))
	}
	assert.Equal(t, 32, h.entries)
	assert.Len(t, h.Pods(), 30)
}

// Of many pods that are gone, the one that went first makes room.
func TestHistory_ForgetsTheOldestDeleted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := New(Config{MaxPods: 20})
		for i := range 20 {
			h.admit(fmt.Sprint("p", i))
		}
		for i := range 20 {
			h.remove(fmt.Sprint("p", (i+7)%20))
			time.Sleep(time.Second)
		}
		h.admit("new")
		assert.Equal(t, []types.UID{"uid-p7"}, h.Changes(h.version-3).Forgotten)
	})
}

func TestHistory_EndsOfPods(t *testing.T) {
	for cause, deleted := range map[podworkers.Cause]bool{podworkers.Deleted: true, podworkers.Removed: true, podworkers.Orphaned: true, podworkers.Completed: false, podworkers.Evicted: false} {
		h := New(Config{})
		h.admit("web")
		h.PodWorkers().PhaseChanged("uid-web", podworkers.Terminated, podworkers.Finished, cause)
		assert.Equal(t, deleted, h.Pods()[0].Health == Deleted, cause)
	}
	h := New(Config{})
	h.PodWorkers().PhaseChanged("unknown", podworkers.Syncing, podworkers.Terminating, podworkers.Deleted)
	assert.Empty(t, h.Pods(), "it has no name here")
	h.admit("web")
	before := h.Pods()[0].Version
	h.PodWorkers().PhaseChanged("uid-web", podworkers.Syncing, podworkers.Syncing, podworkers.Deleted)
	assert.Equal(t, before, h.Pods()[0].Version, "not an end")
}

// A pod that terminates does so whatever its status says, and what has not ended when it is
// gone has ended then.
func TestHistory_TerminatingPod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, pod := New(Config{}), newPod("web")
		h.admit("web")
		ready := corev1.PodStatus{Phase: corev1.PodRunning, ContainerStatuses: []corev1.ContainerStatus{runningStatus("main", true)}}
		ready.ContainerStatuses[0].ContainerID = "containerd://c1"
		h.Status().Changed(pod, corev1.PodStatus{}, ready)
		since := h.Pods()[0].Since
		time.Sleep(time.Second)
		h.Status().Changed(pod, corev1.PodStatus{}, ready)
		assert.Equal(t, since, h.Pods()[0].Since, "the state is the same")
		h.PodWorkers().PhaseChanged(pod.UID, podworkers.Syncing, podworkers.Terminating, podworkers.Deleted)
		p := h.Pods()[0]
		assert.Equal(t, []any{stateTerminating, Progressing, time.Second}, []any{p.State, p.Health, p.Since.Sub(since)})
		h.Status().Changed(pod, corev1.PodStatus{}, ready)
		assert.Equal(t, stateTerminating, h.Pods()[0].State)
		time.Sleep(time.Second)
		version := h.Pods()[0].Version
		h.Housekeeper().StoreCleaned(storeOfStatuses, pod.UID, nil)
		assert.Greater(t, h.Pods()[0].Version, version)
		tl, _ := h.Pod(pod.UID)
		for _, e := range tl.Entries {
			assert.False(t, e.End.IsZero(), e.Kind)
			if e.Kind == KindRun {
				assert.Equal(t, "c1", e.ContainerID)
				assert.Equal(t, time.Now(), e.End)
			}
		}
		version = h.version
		h.Housekeeper().StoreCleaned(storeOfStatuses, pod.UID, nil)
		assert.Equal(t, version, h.version, "it is gone already")

		other := newPod("other")
		other.DeletionTimestamp = &metav1.Time{Time: time.Now()}
		h.Status().Changed(other, corev1.PodStatus{}, ready)
		assert.Equal(t, stateTerminating, h.Pods()[0].State)
	})
}

// A container that does not run is not ready.
func TestHistory_ReadyIsRunning(t *testing.T) {
	h, pod := New(Config{}), newPod("web")
	st := waiting("main", "ContainerCreating", "")
	st.Ready = true
	h.Status().Changed(pod, corev1.PodStatus{}, corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{st}})
	tl, _ := h.Pod(pod.UID)
	assert.Empty(t, tl.Entries)
	for id, want := range map[string]string{"containerd://abc": "abc", "abc": "abc", "a": "a", "a://": ""} {
		assert.Equal(t, want, containerID(id))
	}
}

// Only a start that succeeds begins a run.
func TestHistory_FailedStart(t *testing.T) {
	h, op := New(Config{}), runtime.Operation{Type: runtime.OperationStartContainer, Pod: newPod("web"), Container: "main", ContainerID: "c1"}
	for _, c := range []struct {
		err  error
		last Kind
	}{{errors.New("no such file"), KindStart}, {nil, KindRun}} {
		ctx := h.OperationStarted(context.Background(), op)
		h.OperationEnded(ctx, op, 0, c.err)
		assert.Equal(t, c.last, h.last(t, "uid-web").Kind)
	}
}

// A reader gets what it does not have, once.
func TestHistory_ChangesOfTheNode(t *testing.T) {
	h := New(Config{})
	h.admit("web")
	version := h.version
	h.Eviction().ConditionsChanged([]corev1.NodeCondition{{Type: corev1.NodeReady}})
	assert.Greater(t, h.version, version)
	h.Eviction().Evicting(eviction.MemoryAvailable, []eviction.Candidate{{Pod: newPod("web")}}, runtime.Termination{Message: "low on memory"})
	e := h.last(t, "uid-web")
	assert.Equal(t, []any{KindEvicted, "memory.available", "low on memory", true}, []any{e.Kind, e.Reason, e.Message, e.Failed})
	assert.Len(t, h.Changes(version).Node.Evictions, 1)
	assert.Empty(t, h.Changes(h.version).Node.Evictions)
	h.Eviction().Evicted(eviction.MemoryAvailable, newPod("web"), time.Second, nil)
	h.Eviction().Evicted(eviction.MemoryAvailable, newPod("web"), time.Hour, errors.New("late"))
	assert.Equal(t, 1.0, h.Node().Evictions[0].Took, "it has ended once")
	for range 2 {
		h.ContainerGC().Removed(containergc.Removal{UID: "u"}, 0, nil)
		h.ContainerGC().Collected(containergc.Result{}, nil)
		assert.Empty(t, h.Changes(h.version).Node.Collections)
	}
	assert.Equal(t, 1, h.Node().Collections[1].Removed, "each collection counts its own")
}

func TestHistory_Missed(t *testing.T) {
	h := New(Config{})
	for i := range maxForgotten {
		h.forgotten = append(h.forgotten, forgotten{version: uint64(i + 5)})
		if i < maxForgotten-1 {
			require.False(t, h.missed(1), "it has all that were forgotten")
		}
	}
	assert.True(t, h.missed(4))
	assert.False(t, h.missed(5))
	h.version = 2000
	assert.Len(t, h.Changes(5).Forgotten, maxForgotten-1)
}

func TestEntry_Repeats(t *testing.T) {
	now := time.Now()
	failed := Entry{Kind: KindSyncFailed, Failed: true, Start: now, End: now}
	lasting, progress, other := failed, failed, failed
	lasting.End, progress.Failed, other.Message = time.Time{}, false, "x"
	assert.True(t, failed.repeats(&failed))
	assert.False(t, lasting.repeats(&failed))
	assert.False(t, failed.repeats(&lasting))
	assert.False(t, progress.repeats(&progress))
	assert.False(t, other.repeats(&failed))
	h := New(Config{})
	r := h.record("u", "default", "web")
	assert.Equal(t, h.add(r, failed), h.add(r, failed))
}

// A node that did nothing between two measurements used no CPU, which is known.
func TestSampler_IdleNode(t *testing.T) {
	previous := runtime.CPUUsage{At: time.Now(), UsageCoreNanoSeconds: 7}
	usage := runtime.NodeUsage{CPU: runtime.CPUUsage{At: previous.At.Add(time.Second), UsageCoreNanoSeconds: 7}}
	s := Sampler{Capacity: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("2")}}.sample(&usage, previous)
	assert.Equal(t, []uint64{0, 2000}, []uint64{s.MilliCPU, s.MilliCPUs})
}
