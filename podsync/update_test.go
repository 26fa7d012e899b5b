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

// labelRuntime is a runtime that stores the labels of pods.
type labelRuntime struct {
	*fakeNode
	labels []string
}

func (l *labelRuntime) UpdatePod(_ context.Context, pod *corev1.Pod) error {
	l.labels = append(l.labels, pod.Labels["app"]+pod.Annotations["note"])
	return l.step("update")
}

// A runtime that stores labels and annotations gets them when they change, even if
// nothing is planned.
func TestSync_UpdatesLabelsAndAnnotations(t *testing.T) {
	n := &fakeNode{phase: corev1.PodRunning}
	rt := &labelRuntime{fakeNode: n}
	cfg := newConfig(t, n)
	cfg.Runtime = rt
	s := newSyncer(t, cfg)
	runs := runtime.Pod{
		UID:        "uid-1",
		Sandboxes:  []runtime.Sandbox{{ID: "s0", State: runtime.SandboxReady}},
		Containers: []runtime.Container{{ID: "c0", Name: "main", SandboxID: "s0", State: runtime.Running}},
	}
	sync := func(s *podsync.Syncer, observed runtime.Pod, label, note string) (runtime.SyncResult, error) {
		p := newTestPod()
		p.Labels, p.Annotations = map[string]string{"app": label}, map[string]string{"note": note}
		return s.Sync(t.Context(), p, observed)
	}

	_, err := sync(s, runtime.Pod{UID: "uid-1"}, "a", "")
	require.NoError(t, err)
	assert.Empty(t, rt.labels, "Apply has passed them")
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
	assert.Len(t, rt.labels, 3, "a new process does not know which ones the runtime has")

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

// decoratedRuntime has only the methods that are required of a Runtime.
type decoratedRuntime struct{ podsync.Runtime }

func (d decoratedRuntime) Unwrap() any { return d.Runtime }

// A decorator of the runtime keeps the capability to update pods.
func TestSync_UpdatesLabelsThroughDecorator(t *testing.T) {
	n := &fakeNode{phase: corev1.PodRunning}
	rt := &labelRuntime{fakeNode: n}
	cfg := newConfig(t, n)
	cfg.Runtime = decoratedRuntime{decoratedRuntime{rt}}
	p := newTestPod()
	p.Labels = map[string]string{"app": "a"}
	_, err := newSyncer(t, cfg).Sync(t.Context(), p, runningPod(0))
	require.NoError(t, err)
	assert.Equal(t, []string{"a"}, rt.labels)
}
