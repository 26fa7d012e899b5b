package podops_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/url"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/podlogs"
	"github.com/sublet-dev/agent/podops"
	"github.com/sublet-dev/agent/podstream"
	"github.com/sublet-dev/agent/runtime"
)

// world is all that an Operator uses. It records what is requested.
type world struct {
	pods     []*corev1.Pod
	observed map[types.UID]runtime.Pod
	requests []string
	err      error
	exitCode int
}

func (w *world) record(format string, args ...any) {
	w.requests = append(w.requests, fmt.Sprintf(format, args...))
}

func (w *world) Get(uid types.UID) (runtime.Pod, bool) {
	p, ok := w.observed[uid]
	return p, ok
}

func (w *world) Pods() []runtime.Pod { return slices.Collect(maps.Values(w.observed)) }

func (w *world) Apply(_ context.Context, pod *corev1.Pod, plan []runtime.Action, _ runtime.RunOptions) runtime.ApplyResult {
	for _, a := range plan {
		w.record("%v %s %s of %s within %v", a.Type, a.Container, a.ID, pod.Name, a.GracePeriod)
		if w.err != nil {
			return runtime.ApplyResult{Failures: map[string]runtime.Failure{a.Container: {Err: w.err}}}
		}
	}
	return runtime.ApplyResult{}
}

func (w *world) Exec(_ context.Context, id string, command []string, _ time.Duration, _ int) ([]byte, int, error) {
	w.record("exec %s %q", id, command)
	return []byte("output"), w.exitCode, w.err
}

func (w *world) Evict(_ context.Context, pod *corev1.Pod, t runtime.Termination) error {
	w.record("evict %s %v %s %v", pod.Name, t.GracePeriod, t.Reason, t.Evicted)
	return w.err
}

func (w *world) Recreate(_ context.Context, pod *corev1.Pod, t runtime.Termination) error {
	w.record("recreate %s drained=%v", pod.Name, t.Drained)
	return w.err
}

func (w *world) Copy(_ context.Context, _, _ io.Writer, log podlogs.Log, _ *corev1.PodLogOptions) error {
	w.record("log %s running=%v", log.Path, log.IsRunning())
	return w.err
}

func (w *world) ExecURL(_ context.Context, id string, command []string, s runtime.Streams) (*url.URL, error) {
	w.record("exec URL %s %q %+v", id, command, s)
	return nil, w.err
}

func (w *world) AttachURL(_ context.Context, id string, s runtime.Streams) (*url.URL, error) {
	w.record("attach URL %s %+v", id, s)
	return nil, w.err
}

func (w *world) PortForwardURL(_ context.Context, id string, ports []int32) (*url.URL, error) {
	w.record("port-forward URL %s %v", id, ports)
	return nil, w.err
}

// take returns the requests since the last call.
func (w *world) take() []string {
	r := w.requests
	w.requests = nil
	return r
}

func newWorld(t *testing.T) (*world, *podops.Operator) {
	t.Helper()
	w := &world{observed: map[types.UID]runtime.Pod{"u1": {
		UID: "u1", Sandboxes: []runtime.Sandbox{{ID: "s1", State: runtime.SandboxReady}},
		Containers: []runtime.Container{
			{ID: "c2", Name: "app", Attempt: 1, State: runtime.Running},
			{ID: "c1", Name: "app", State: runtime.Exited},
			{ID: "i1", Name: "init", State: runtime.Exited},
			{ID: "t1", Name: "shell", State: runtime.Running},
		},
	}}}
	w.pods = []*corev1.Pod{newPod("web", "u1", "app")}
	w.pods[0].Spec.Containers = append(w.pods[0].Spec.Containers, corev1.Container{Name: "shell", TTY: true})
	w.pods[0].Annotations = map[string]string{"kubectl.kubernetes.io/default-container": "app"}
	o, err := podops.New(podops.Config{
		Pods: func() []*corev1.Pod { return w.pods }, PodCache: w, Runtime: w, Workers: w, Logs: w,
	})
	require.NoError(t, err)
	return w, o
}

func newPod(name string, uid types.UID, containers ...string) *corev1.Pod {
	grace := int64(7)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: uid}, Spec: corev1.PodSpec{TerminationGracePeriodSeconds: &grace}}
	for _, c := range containers {
		pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{Name: c})
	}
	return pod
}

func TestNew_RequiresConfig(t *testing.T) {
	_, err := podops.New(podops.Config{})
	require.ErrorContains(t, err, "required")
}

func TestOperator_Pod(t *testing.T) {
	w, o := newWorld(t)
	at := func(pod *corev1.Pod, seconds int64, terminating bool) *corev1.Pod {
		start := metav1.Unix(seconds, 0)
		pod.Status.StartTime = &start
		if terminating {
			pod.DeletionTimestamp = &start
		}
		return pod
	}
	require.Equal(t, w.pods, o.Pods())
	w.pods = []*corev1.Pod{
		at(newPod("web", "terminating"), 9, true), at(newPod("web", "older"), 1, false), at(newPod("web", "newer"), 2, false), at(newPod("web", "oldest"), 0, false),
		newPod("other", "u2"),
	}
	pod, err := o.Pod("ns", "web")
	require.NoError(t, err)
	assert.EqualValues(t, "newer", pod.UID)
	_, err = o.Pod("other", "web")
	require.ErrorIs(t, err, runtime.ErrNotFound)
}

func TestContainer(t *testing.T) {
	pod := newPod("web", "u1", "a", "b")
	_, err := podops.Container(pod, "")
	require.ErrorIs(t, err, podops.ErrContainerRequired)
	require.ErrorContains(t, err, `choose one of ["a" "b"]`)
	name, err := podops.Container(pod, "x")
	require.NoError(t, err)
	assert.Equal(t, "x", name)
	name, err = podops.Container(newPod("web", "u1", "only"), "")
	require.NoError(t, err)
	assert.Equal(t, "only", name)
}

func TestOperator_Requests(t *testing.T) {
	w, o := newWorld(t)
	ctx, pod := t.Context(), w.pods[0]
	for want, call := range map[string]func() error{
		"log ns_web_u1/app/1.log running=true":  func() error { return o.ReadLog(ctx, pod, &corev1.PodLogOptions{}, nil, nil) },
		"log ns_web_u1/app/0.log running=false": func() error { return o.ReadLog(ctx, pod, &corev1.PodLogOptions{Previous: true}, nil, nil) },
		"log ns_web_u1/init/0.log running=false": func() error {
			return o.Logs(ctx, "ns", "web", &corev1.PodLogOptions{Container: "init"}, nil, nil)
		},
		`exec c2 ["ls"]`: func() error { _, err := o.RunCommand(ctx, pod, "", []string{"ls"}); return err },
		`exec URL c2 ["ls"] {Stdin:true Stdout:true Stderr:false TTY:true}`: func() error {
			_, err := o.ExecURL(ctx, pod, &corev1.PodExecOptions{Command: []string{"ls"}, Stdin: true, Stdout: true, TTY: true})
			return err
		},
		"attach URL c2 {Stdin:false Stdout:true Stderr:true TTY:false}": func() error {
			_, err := o.AttachURL(ctx, pod, &corev1.PodAttachOptions{Stdout: true, Stderr: true, TTY: true})
			return err
		},
		"attach URL t1 {Stdin:true Stdout:true Stderr:false TTY:true}": func() error {
			_, err := o.AttachURL(ctx, pod, &corev1.PodAttachOptions{Container: "shell", Stdin: true, Stdout: true, Stderr: true})
			return err
		},
		"port-forward URL s1 [80]": func() error {
			_, err := o.PortForwardURL(ctx, pod, &corev1.PodPortForwardOptions{Ports: []int32{80}})
			return err
		},
		"KillContainer app c2 of web within 7s": func() error { return o.Restart(ctx, "ns", "web", "app") },
		"recreate web drained=true":             func() error { return o.Restart(ctx, "ns", "web", "") },
		"evict web 3s Evicted true":             func() error { return o.Evict(ctx, "ns", "web", 3*time.Second) },
		"evict web 2s Evicted true ":            func() error { return o.Drain(ctx, podops.DrainOptions{GracePeriod: 2 * time.Second}) },
	} {
		w.err = nil
		require.NoError(t, call(), want)
		if want[len(want)-1] == ' ' {
			want = want[:len(want)-1]
		}
		assert.Equal(t, []string{want}, w.take())
		w.err = errors.New("runtime failed")
		require.ErrorIs(t, call(), w.err, want)
		w.take()
	}
}

// kubectl logs --previous of a container that waits for its next start shows the attempt
// that its last state is about.
func TestOperator_ReadLogOfPrevious(t *testing.T) {
	waiting := corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}}
	running := corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
	terminated := corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}}
	for name, tt := range map[string]struct {
		latest runtime.ContainerState
		status corev1.ContainerState
		want   string
	}{
		"the one before a running container":    {runtime.Running, running, "0.log"},
		"the latest during a back-off":          {runtime.Exited, waiting, "1.log"},
		"the one before a container just begun": {runtime.Created, waiting, "0.log"},
		"the one before a terminated container": {runtime.Exited, terminated, "0.log"},
	} {
		t.Run(name, func(t *testing.T) {
			w, o := newWorld(t)
			pod := w.pods[0]
			w.observed["u1"].Containers[0].State = tt.latest
			pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "other"}, {Name: "app", State: tt.status}}
			require.NoError(t, o.ReadLog(t.Context(), pod, &corev1.PodLogOptions{Previous: true}, nil, nil))
			require.Len(t, w.requests, 1)
			assert.Contains(t, w.requests[0], "log ns_web_u1/app/"+tt.want)
		})
	}
}

// Between the creation and the start of its next attempt, a container has the log of the last one, as with a kubelet.
func TestOperator_ReadLogBeforeStart(t *testing.T) {
	w, o := newWorld(t)
	w.observed["u1"].Containers[0].State = runtime.Created
	require.NoError(t, o.ReadLog(t.Context(), w.pods[0], &corev1.PodLogOptions{Container: "app"}, nil, nil))
	assert.Equal(t, []string{"log ns_web_u1/app/0.log running=false"}, w.take())
}

func TestOperator_RunCommandReturnsOutputOfFailure(t *testing.T) {
	w, o := newWorld(t)
	w.exitCode = 3
	output, err := o.RunCommand(t.Context(), w.pods[0], "app", []string{"false"})
	require.EqualError(t, err, "command terminated with exit code 3")
	assert.Equal(t, "output", string(output))
}

// Errors say what to do next, or why there is nothing yet.
func TestOperator_Errors(t *testing.T) {
	w, o := newWorld(t)
	ctx, out := t.Context(), new(bytes.Buffer)
	calls := func(name, container string) map[string]error {
		_, forward := o.PortForward(ctx, "ns", name)
		return map[string]error{
			"logs":    o.Logs(ctx, "ns", name, &corev1.PodLogOptions{Container: container}, out, out),
			"exec":    o.Exec(ctx, "ns", name, container, []string{"true"}, podstream.Options{Stdout: out}),
			"attach":  o.Attach(ctx, "ns", name, container, podstream.Options{Stdout: out}),
			"restart": o.Restart(ctx, "ns", name, container),
			"forward": forward,
		}
	}
	for verb, err := range calls("none", "app") {
		require.ErrorIs(t, err, runtime.ErrNotFound, verb)
		require.ErrorContains(t, err, "pod ns/none", verb)
	}
	waiting := newPod("waiting", "u2", "app")
	waiting.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "app", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ErrImagePull", Message: "no such host"}}}}
	w.pods = append(w.pods, waiting)
	for verb, err := range calls("waiting", "app") {
		require.ErrorIs(t, err, runtime.ErrNotFound, verb)
		require.ErrorContains(t, err, `container "app" is waiting to start: ErrImagePull no such host`, verb)
	}
	w.observed["u2"] = runtime.Pod{UID: "u2"}
	for verb, err := range calls("waiting", "app") {
		require.ErrorIs(t, err, runtime.ErrNotFound, verb)
		require.ErrorContains(t, err, "ErrImagePull", verb)
	}
	w.observed["u2"] = runtime.Pod{UID: "u2", Containers: []runtime.Container{{ID: "c", Name: "app", State: runtime.Exited}}}
	require.ErrorIs(t, calls("waiting", "app")["exec"], podops.ErrNotRunning)
	require.ErrorIs(t, o.Evict(ctx, "ns", "none", 0), runtime.ErrNotFound)

	rejected := newPod("rejected", "u3", "app")
	rejected.Status = corev1.PodStatus{Phase: corev1.PodFailed, Reason: "OutOfcpu", Message: "too much"}
	w.pods = append(w.pods, rejected)
	require.ErrorContains(t, calls("rejected", "app")["logs"], "the pod is Failed: OutOfcpu too much")
	w.take()
	require.NoError(t, o.Drain(ctx, podops.DrainOptions{Filter: func(pod *corev1.Pod) bool { return pod.Name != "web" }}))
	assert.Equal(t, []string{"evict waiting 0s Evicted true"}, w.take(), "a pod that has failed needs no eviction")
	two := newPod("two", "u1", "app", "shell")
	_, err := o.RunCommand(ctx, two, "", nil)
	require.ErrorIs(t, err, podops.ErrContainerRequired)
	require.ErrorIs(t, o.ReadLog(ctx, two, &corev1.PodLogOptions{}, out, out), podops.ErrContainerRequired)
	invalid := newPod("in/valid", "u1", "app")
	require.ErrorIs(t, o.ReadLog(ctx, invalid, &corev1.PodLogOptions{}, out, out), runtime.ErrInvalid)
}

// A log ends with its container, also if that is not in the runtime any more.
func TestOperator_LogOfRemovedContainer(t *testing.T) {
	w, _ := newWorld(t)
	logs := &removingLogs{w: w}
	o, err := podops.New(podops.Config{Pods: func() []*corev1.Pod { return w.pods }, PodCache: w, Runtime: struct{ podops.Runtime }{w}, Workers: w, Logs: logs})
	require.NoError(t, err)
	require.NoError(t, o.Logs(t.Context(), "ns", "web", &corev1.PodLogOptions{}, nil, nil))
	assert.Equal(t, []bool{true, false}, logs.running)
	err = o.Exec(t.Context(), "ns", "web", "app", nil, podstream.Options{})
	require.ErrorIs(t, err, runtime.ErrNotFound)
	w.observed["u1"] = runtime.Pod{Sandboxes: []runtime.Sandbox{{ID: "s", State: runtime.SandboxReady}}, Containers: []runtime.Container{{Name: "app", State: runtime.Running}}}
	for _, err := range []error{
		o.Exec(t.Context(), "ns", "web", "app", nil, podstream.Options{}), o.Attach(t.Context(), "ns", "web", "app", podstream.Options{}),
		func() error { _, err := o.PortForward(t.Context(), "ns", "web"); return err }(),
	} {
		require.ErrorIs(t, err, runtime.ErrUnsupported)
	}
}

type removingLogs struct {
	w       *world
	running []bool
}

func (l *removingLogs) Copy(_ context.Context, _, _ io.Writer, log podlogs.Log, _ *corev1.PodLogOptions) error {
	l.running = append(l.running, log.IsRunning())
	delete(l.w.observed, "u1")
	l.running = append(l.running, log.IsRunning())
	return nil
}
