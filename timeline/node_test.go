package timeline

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/containergc"
	"github.com/sublet-dev/agent/eviction"
	"github.com/sublet-dev/agent/imagegc"
	"github.com/sublet-dev/agent/runtime"
)

func TestHistory_ExplainsEvictions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := New(Config{})
		hooks := h.Eviction()
		var ranked []eviction.Candidate
		for i := range 30 {
			ranked = append(ranked, eviction.Candidate{Pod: newPod(fmt.Sprint("p", i)), Usage: 100, Request: uint64(i * 10), Priority: int32(i)})
		}
		hooks.Evicting(eviction.MemoryAvailable, nil, runtime.Termination{})
		hooks.Evicting(eviction.MemoryAvailable, ranked, runtime.Termination{Message: "The node was low on resource: memory.", GracePeriod: 3 * time.Second})
		time.Sleep(2 * time.Second)
		hooks.Evicted(eviction.MemoryAvailable, newPod("other"), time.Second, nil)
		before := h.Node().Evictions
		require.Len(t, before, 1)
		assert.False(t, before[0].Done)
		hooks.Evicted(eviction.MemoryAvailable, ranked[0].Pod, 2*time.Second, errors.New("still there"))
		e := h.Node().Evictions[0]
		assert.Equal(t, []any{"memory.available", "p0", 30, 3.0, 2.0, "still there", true}, []any{e.Signal, e.Name, e.Candidates, e.Grace, e.Took, e.Error, e.Done})
		require.Len(t, e.Ranked, maxRanked)
		assert.Equal(t, Candidate{UID: "uid-p3", Namespace: "default", Name: "p3", Priority: 3, ExceedsRequest: true, Usage: 100, Request: 30}, e.Ranked[3])
		tl, _ := h.Pod("uid-p0")
		assert.Equal(t, KindEvicted, tl.Entries[0].Kind)
		for range maxEvictions {
			hooks.Evicting(eviction.MemoryAvailable, ranked[1:2], runtime.Termination{})
		}
		assert.Len(t, h.Node().Evictions, maxEvictions)
		assert.Equal(t, "p1", h.Node().Evictions[0].Name)
		hooks.Evicting(eviction.EmptyDirFSLimit, ranked[2:3], runtime.Termination{Message: "above the limit"})
		last := h.Node().Evictions[maxEvictions-1]
		assert.Equal(t, []string{"p2", "", "above the limit"}, []string{last.Name, last.Signal, last.Message})
	})
}

func TestHistory_Conditions(t *testing.T) {
	h := New(Config{})
	assert.NotNil(t, h.Node().Conditions)
	h.Eviction().ConditionsChanged([]corev1.NodeCondition{{Type: corev1.NodeMemoryPressure, Status: corev1.ConditionTrue, Reason: "Low", Message: strings.Repeat("x", 9999)}})
	version := h.version
	h.admit("web")
	c := h.Changes(version).Node.Conditions
	require.Len(t, c, 1, "always complete")
	assert.Equal(t, "MemoryPressure True Low", c[0].Type+" "+c[0].Status+" "+c[0].Reason)
	assert.Len(t, c[0].Message, maxMessage)
}

func TestHistory_ExplainsCollections(t *testing.T) {
	h := New(Config{})
	images, containers := h.ImageGC(), h.ContainerGC()
	images.Collected(imagegc.Result{}, nil)
	containers.Collected(containergc.Result{}, nil)
	assert.Empty(t, h.Node().Collections, "nothing was removed")

	used := time.Now().Add(-time.Hour)
	images.Removed(runtime.Image{ID: "sha256:2", Bytes: 5}, imagegc.ReasonDiskUsage, time.Second, errors.New("in use"))
	images.Removed(runtime.Image{ID: "sha256:1"}, imagegc.ReasonDiskUsage, time.Second, nil)
	images.Collected(imagegc.Result{
		Removed: []imagegc.Decision{
			{Image: runtime.Image{ID: "sha256:1", Tags: []string{"app:1"}, Bytes: 9}, Record: imagegc.ImageRecord{LastUsed: used}, Reason: imagegc.ReasonDiskUsage},
			{Image: runtime.Image{ID: "sha256:3", Digests: []string{"app@sha256:3"}}, Reason: imagegc.ReasonMaxAge},
		},
		BytesToFree: 10, BytesFreed: 8, Duration: 2 * time.Second,
	}, errors.New("one image"))
	pod := &runtime.Pod{Namespace: "default", Name: "web"}
	for i := range maxItems {
		containers.Removed(containergc.Removal{Pod: pod, Container: &runtime.Container{Name: fmt.Sprint("c", i)}, Reason: containergc.ReasonReplaced}, 0, nil)
	}
	containers.Removed(containergc.Removal{UID: "u", Sandbox: &runtime.Sandbox{}, Reason: containergc.ReasonUnused}, 0, errors.New("busy"))
	containers.Collected(containergc.Result{Duration: time.Second}, nil)
	containers.Collected(containergc.Result{}, errors.New("runtime is down"))

	all := h.Node().Collections
	require.Len(t, all, 3)
	assert.Equal(t, []any{"images", 2, 2.0, uint64(10), uint64(8), "one image"}, []any{all[0].What, all[0].Removed, all[0].Took, all[0].BytesToFree, all[0].BytesFreed, all[0].Error})
	assert.Equal(t, []Collected{
		{Name: "sha256:2", Bytes: 5, Reason: string(imagegc.ReasonDiskUsage), Error: "in use"},
		{Name: "app:1", Bytes: 9, LastUsed: used, Reason: string(imagegc.ReasonDiskUsage)},
		{Name: "app@sha256:3", Reason: string(imagegc.ReasonMaxAge)},
	}, all[0].Items)
	assert.Equal(t, []any{"containers", maxItems}, []any{all[1].What, all[1].Removed})
	require.Len(t, all[1].Items, maxItems)
	assert.Equal(t, Collected{Name: "default/web c0", Reason: string(containergc.ReasonReplaced)}, all[1].Items[0])
	assert.Equal(t, "runtime is down", all[2].Error)
	assert.NotNil(t, all[2].Items)
	assert.Equal(t, "u (sandbox)", removalName(containergc.Removal{UID: "u"}))
}
