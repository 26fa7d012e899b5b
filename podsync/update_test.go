package podsync_test

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/podsync"
	"github.com/sublet-dev/agent/runtime"
)

// labelled is a runtime that keeps the labels of pods.
type labelled struct {
	*fakeNode
	labels []string
}

func (l *labelled) UpdatePod(_ context.Context, pod *corev1.Pod) error {
	l.labels = append(l.labels, pod.Labels["app"]+pod.Annotations["note"])
	return l.step("update")
}

// A runtime that keeps labels and annotations of pods hears of it when they change,
// though there is nothing to plan.
func TestSync_HandsOnLabelsAndAnnotations(t *testing.T) {
	n := &fakeNode{phase: corev1.PodRunning}
	rt := &labelled{fakeNode: n}
	cfg := config(t, n)
	cfg.Runtime = rt
	s := newSyncer(t, cfg)
	runs := runtime.Pod{
		UID:        "uid-1",
		Sandboxes:  []runtime.Sandbox{{ID: "s0", State: runtime.SandboxReady}},
		Containers: []runtime.Container{{ID: "c0", Name: "main", SandboxID: "s0", State: runtime.Running}},
	}
	sync := func(s *podsync.Syncer, seen runtime.Pod, label, note string) (runtime.SyncResult, error) {
		p := pod()
		p.Labels, p.Annotations = map[string]string{"app": label}, map[string]string{"note": note}
		return s.Sync(t.Context(), p, seen)
	}

	_, err := sync(s, runtime.Pod{UID: "uid-1"}, "a", "")
	require.NoError(t, err)
	assert.Empty(t, rt.labels, "it makes the pod of what Apply has")
	out, err := sync(s, runs, "a", "")
	require.NoError(t, err)
	assert.Empty(t, rt.labels)
	assert.True(t, out.Unchanged)

	out, err = sync(s, runs, "b", "")
	require.NoError(t, err)
	assert.Equal(t, []string{"b"}, rt.labels)
	assert.False(t, out.Unchanged)
	_, err = sync(s, runs, "b", "!")
	require.NoError(t, err)
	assert.Equal(t, []string{"b", "b!"}, rt.labels)
	_, err = sync(s, runs, "b", "!")
	require.NoError(t, err)
	assert.Len(t, rt.labels, 2, "once")

	_, err = sync(newSyncer(t, cfg), runs, "b", "!")
	require.NoError(t, err)
	assert.Len(t, rt.labels, 3, "a new agent cannot know")

	n.fail = map[string]error{"update": errors.New("busy")}
	for range 2 {
		_, err = sync(s, runs, "c", "!")
		require.ErrorContains(t, err, "update pod: busy")
	}
	assert.Len(t, n.events, 1)
	assert.Equal(t, "FailedSync", n.events[0].Reason)
	n.fail = nil
	_, err = sync(s, runs, "c", "!")
	require.NoError(t, err)
	assert.Equal(t, "c!", rt.labels[len(rt.labels)-1])
}
