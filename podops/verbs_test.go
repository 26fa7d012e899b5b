package podops_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sublet-dev/agent/podops"
	"github.com/sublet-dev/agent/podstream"
	"github.com/sublet-dev/agent/runtime"
)

func TestNew_RequiresEachField(t *testing.T) {
	w, _ := newWorld(t)
	for name, remove := range map[string]func(*podops.Config){
		"Pods": func(c *podops.Config) { c.Pods = nil }, "PodCache": func(c *podops.Config) { c.PodCache = nil }, "Runtime": func(c *podops.Config) { c.Runtime = nil },
		"Workers": func(c *podops.Config) { c.Workers = nil }, "Logs": func(c *podops.Config) { c.Logs = nil },
	} {
		cfg := podops.Config{Pods: func() []*corev1.Pod { return nil }, PodCache: w, Runtime: w, Workers: w, Logs: w}
		remove(&cfg)
		_, err := podops.New(cfg)
		require.ErrorContains(t, err, "required", name)
	}
}

// checkpointRuntime has the capability.
type checkpointRuntime struct {
	*world
	*checkpoints
}

// Without a function it is the capability of the runtime, and without a directory there is none.
func TestOperator_CheckpointByTheRuntime(t *testing.T) {
	w, _ := newWorld(t)
	c := &checkpoints{}
	cfg := podops.Config{Pods: func() []*corev1.Pod { return w.pods }, PodCache: w, Runtime: checkpointRuntime{w, c}, Workers: w, Logs: w}
	o, err := podops.New(cfg)
	require.NoError(t, err)
	_, err = o.Checkpoint(t.Context(), w.pods[0], "app", 0)
	require.ErrorIs(t, err, runtime.ErrUnsupported)
	cfg.CheckpointsDir = t.TempDir()
	o, err = podops.New(cfg)
	require.NoError(t, err)
	_, err = o.Checkpoint(t.Context(), w.pods[0], "app", 0)
	require.NoError(t, err)
	assert.Len(t, c.requests, 1)
}

// A pod that has not started is as old as its object.
func TestOperator_PodWithoutStartTime(t *testing.T) {
	w, o := newWorld(t)
	older, newer := newPod("web", "older"), newPod("web", "newer")
	older.CreationTimestamp, newer.CreationTimestamp = metav1.Unix(1, 0), metav1.Unix(2, 0)
	w.pods = []*corev1.Pod{older, newer}
	pod, err := o.Pod("ns", "web")
	require.NoError(t, err)
	assert.EqualValues(t, "newer", pod.UID)
}

// The streams that are asked for are those of the client; a terminal has no stderr.
func TestOperator_StreamsOfVerbs(t *testing.T) {
	in, out := strings.NewReader(""), io.Discard
	for name, c := range map[string]struct {
		container string
		o         podstream.Options
		exec      string
		attach    string
	}{
		"none":                {"app", podstream.Options{}, "{Stdin:false Stdout:false Stderr:false TTY:false}", "c2 {Stdin:false Stdout:false Stderr:false TTY:false}"},
		"all":                 {"app", podstream.Options{Stdin: in, Stdout: out, Stderr: out}, "{Stdin:true Stdout:true Stderr:true TTY:false}", "c2 {Stdin:true Stdout:true Stderr:true TTY:false}"},
		"stdin":               {"app", podstream.Options{Stdin: in}, "{Stdin:true Stdout:false Stderr:false TTY:false}", "c2 {Stdin:true Stdout:false Stderr:false TTY:false}"},
		"a terminal for exec": {"app", podstream.Options{Stdout: out, Stderr: out, TTY: true}, "{Stdin:false Stdout:true Stderr:false TTY:true}", "c2 {Stdin:false Stdout:true Stderr:true TTY:false}"},
		"that of the spec":    {"shell", podstream.Options{Stdout: out, Stderr: out}, "{Stdin:false Stdout:true Stderr:true TTY:false}", "t1 {Stdin:false Stdout:true Stderr:false TTY:true}"},
	} {
		t.Run(name, func(t *testing.T) {
			w, o := newWorld(t)
			w.err = errors.New("no streaming server")
			require.ErrorIs(t, o.Exec(t.Context(), "ns", "web", c.container, []string{"x"}, c.o), w.err)
			require.ErrorIs(t, o.Attach(t.Context(), "ns", "web", c.container, c.o), w.err)
			requests := w.take()
			require.Len(t, requests, 2)
			assert.True(t, strings.HasSuffix(requests[0], c.exec), requests[0])
			assert.Equal(t, "attach URL "+c.attach, requests[1])
		})
	}
	w, o := newWorld(t)
	w.pods[0].Annotations = nil
	require.ErrorIs(t, o.Attach(t.Context(), "ns", "web", "", podstream.Options{}), podops.ErrContainerRequired)
}

// closedServer is a streaming server that does not listen.
type closedServer struct{ *world }

func (closedServer) PortForwardURL(context.Context, string, []int32) (*url.URL, error) {
	return &url.URL{Scheme: "http", Host: "127.0.0.1:1"}, nil
}

func TestOperator_PortForwardToALostServer(t *testing.T) {
	w, _ := newWorld(t)
	o, err := podops.New(podops.Config{Pods: func() []*corev1.Pod { return w.pods }, PodCache: w, Runtime: closedServer{w}, Workers: w, Logs: w})
	require.NoError(t, err)
	_, err = o.PortForward(t.Context(), "ns", "web")
	require.ErrorContains(t, err, "connect to the streaming server")
}

// The reason is that of the container that is meant.
func TestOperator_ReasonOfWaiting(t *testing.T) {
	w, o := newWorld(t)
	pod := newPod("waiting", "u2", "app", "other")
	wait := func(name, reason string) corev1.ContainerStatus {
		return corev1.ContainerStatus{Name: name, State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason}}}
	}
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "running"}, wait("other", "ErrImagePull"), wait("app", "ContainerCreating")}
	w.pods = append(w.pods, pod)
	w.observed["u2"] = runtime.Pod{UID: "u2", Sandboxes: []runtime.Sandbox{{ID: "s", State: runtime.SandboxReady}}}
	_, err := o.RunCommand(t.Context(), pod, "app", nil)
	require.ErrorIs(t, err, runtime.ErrNotFound)
	require.ErrorContains(t, err, `; container "app" is waiting to start: ContainerCreating`)
	err = o.ReadLog(t.Context(), pod, &corev1.PodLogOptions{Container: "app", Previous: true}, nil, nil)
	require.ErrorContains(t, err, "ContainerCreating", "a container without any attempt has no previous one")
}

// A container without a status has no back-off.
func TestOperator_ReadLogOfPreviousWithoutStatus(t *testing.T) {
	w, o := newWorld(t)
	w.observed["u1"].Containers[0].State = runtime.Exited
	require.NoError(t, o.ReadLog(t.Context(), w.pods[0], &corev1.PodLogOptions{Previous: true}, nil, nil))
	assert.Contains(t, w.take()[0], "log ns_web_u1/app/0.log")
}

func TestOperator_RunCommandFails(t *testing.T) {
	w, o := newWorld(t)
	w.err, w.exitCode = errors.New("runtime failed"), 3
	_, err := o.RunCommand(t.Context(), w.pods[0], "app", []string{"x"})
	require.Equal(t, w.err, err)
}

// RestartPod returns when the pod is there again, or after a while, if it is gone for good.
func TestOperator_RestartWaitsForThePod(t *testing.T) {
	for name, c := range map[string]struct{ away, want time.Duration }{
		"there":   {0, 0},
		"soon":    {50 * time.Millisecond, 60 * time.Millisecond},
		"removed": {time.Hour, 10 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w, _ := newWorld(t)
				start, pod := time.Now(), w.pods[0]
				o, err := podops.New(podops.Config{Pods: func() []*corev1.Pod {
					if time.Since(start) < c.away {
						return []*corev1.Pod{newPod("web", "other")}
					}
					return w.pods
				}, PodCache: w, Runtime: w, Workers: w, Logs: w})
				require.NoError(t, err)
				require.NoError(t, o.RestartPod(t.Context(), pod))
				assert.Equal(t, c.want, time.Since(start))
				ctx, cancel := context.WithCancel(t.Context())
				cancel()
				if c.away == time.Hour {
					require.ErrorIs(t, o.RestartPod(ctx, pod), context.Canceled)
				}
			})
		})
	}
}

// A container that the spec does not have, such as one of an earlier version, has the
// terminal that the client asks for.
func TestOperator_AttachToAContainerWithoutSpec(t *testing.T) {
	w, o := newWorld(t)
	w.pods[0].Spec.Containers = nil
	for _, tty := range []bool{true, false} {
		_, err := o.AttachURL(t.Context(), w.pods[0], &corev1.PodAttachOptions{Container: "app", Stdout: true, TTY: tty})
		require.NoError(t, err)
		assert.Contains(t, w.take()[0], fmt.Sprintf("TTY:%v", tty))
	}
}
