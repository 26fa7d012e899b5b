package podops_test

import (
	"context"
	"io"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/podops"
	"github.com/sublet-dev/agent/runtime"
)

// podWorld has a runtime with logs of its own, and pods that it reports as objects.
type podWorld struct{ *world }

func (w podWorld) ReadLog(_ context.Context, pod *corev1.Pod, container string, opts *corev1.PodLogOptions, _, _ io.Writer) error {
	w.record("read log of %s/%s previous=%v", pod.Name, container, opts.Previous)
	return w.err
}

func newPodWorld(t *testing.T, st corev1.PodStatus) (*world, *podops.Operator) {
	t.Helper()
	w := &world{pods: []*corev1.Pod{newPod("web", "u1", "app")}}
	w.observed = map[types.UID]runtime.Pod{"u1": {UID: "u1", Object: &corev1.Pod{Status: st}}}
	o, err := podops.New(podops.Config{
		Pods: func() []*corev1.Pod { return w.pods }, PodCache: w, Runtime: podWorld{w}, Workers: w, Logs: w,
	})
	require.NoError(t, err)
	return w, o
}

// Pods that the runtime reports as objects have the same operations.
func TestOperator_Objects(t *testing.T) {
	w, o := newPodWorld(t, corev1.PodStatus{Phase: corev1.PodRunning})
	_, err := o.RunCommand(t.Context(), w.pods[0], "", []string{"true"})
	require.NoError(t, err)
	_, err = o.ExecURL(t.Context(), w.pods[0], &corev1.PodExecOptions{Command: []string{"sh"}})
	require.NoError(t, err)
	_, err = o.PortForwardURL(t.Context(), w.pods[0], &corev1.PodPortForwardOptions{Ports: []int32{80}})
	require.NoError(t, err)
	require.NoError(t, o.ReadLog(t.Context(), w.pods[0], &corev1.PodLogOptions{Previous: true}, nil, nil))
	require.NoError(t, o.RestartContainer(t.Context(), w.pods[0], "app"))
	assert.Equal(t, []string{
		`exec u1/app ["true"]`,
		`exec URL u1/app ["sh"] {Stdin:false Stdout:false Stderr:false TTY:false}`,
		"port-forward URL u1 [80]",
		"read log of web/app previous=true",
		"KillContainer app u1/app of web within 7s",
	}, w.take())
	require.ErrorIs(t, o.ReadLog(t.Context(), w.pods[0], &corev1.PodLogOptions{Container: "other"}, nil, nil), runtime.ErrNotFound)
}

func TestOperator_EndedObject(t *testing.T) {
	w, o := newPodWorld(t, corev1.PodStatus{Phase: corev1.PodSucceeded})
	_, err := o.RunCommand(t.Context(), w.pods[0], "", []string{"true"})
	require.ErrorIs(t, err, podops.ErrNotRunning)
	_, err = o.PortForwardURL(t.Context(), w.pods[0], &corev1.PodPortForwardOptions{})
	require.ErrorIs(t, err, runtime.ErrNotFound)
	require.NoError(t, o.ReadLog(t.Context(), w.pods[0], &corev1.PodLogOptions{}, nil, nil))
}
