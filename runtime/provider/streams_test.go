package provider_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent"
	"github.com/sublet-dev/agent/node"
	"github.com/sublet-dev/agent/podsource"
	"github.com/sublet-dev/agent/podstream"
	"github.com/sublet-dev/agent/runtime"
	"github.com/sublet-dev/agent/runtime/provider"
)

// complete is a provider that implements all interfaces.
type complete struct {
	updating
	pingErr error
}

func (c *complete) Ping(context.Context) error { return c.pingErr }

func (c *complete) GetContainerLogs(_ context.Context, namespace, pod, container string, opts *corev1.PodLogOptions) (io.ReadCloser, error) {
	switch {
	case opts.Previous:
		return nil, nfError{}
	case opts.Follow:
		r, _ := io.Pipe()
		return r, nil
	case opts.Timestamps:
		panic("no clock")
	}
	return io.NopCloser(strings.NewReader("log of " + namespace + "/" + pod + "/" + container + "\n")), nil
}

// nfError is an error as providers of virtual-kubelet return it.
type nfError struct{}

func (nfError) Error() string  { return "gone" }
func (nfError) NotFound() bool { return true }

func (c *complete) RunInContainer(ctx context.Context, namespace, pod, container string, command []string, s podstream.Options) error {
	switch command[0] {
	case "fail":
		_, _ = io.WriteString(s.Stderr, "failed\n")
		return podstream.ExitError{Code: 3}
	case "cat":
		_, err := io.Copy(s.Stdout, s.Stdin)
		return err
	case "wait":
		_, _ = io.WriteString(s.Stdout, "begun")
		<-ctx.Done()
		return ctx.Err()
	case "size":
		size := <-s.Resize
		_, _ = io.WriteString(s.Stdout, strings.Repeat("x", int(size.Width)))
		return nil
	case "hang":
		<-ctx.Done()
		return ctx.Err()
	case "panic":
		panic("no such luck")
	}
	_, err := io.WriteString(s.Stdout, strings.Join(append([]string{namespace, pod, container}, command...), " "))
	return err
}

func (c *complete) AttachToContainer(_ context.Context, _, pod, container string, s podstream.Options) error {
	if s.Stdin != nil {
		_, err := io.Copy(s.Stdout, s.Stdin)
		return err
	}
	_, err := io.WriteString(s.Stdout, "attached to "+pod+"/"+container)
	return err
}

func (c *complete) PortForward(_ context.Context, _, pod string, port int32, stream io.ReadWriteCloser) error {
	b := make([]byte, 4)
	if _, err := io.ReadFull(stream, b); err != nil {
		return err
	}
	_, err := io.WriteString(stream, pod+" "+string(b))
	return errors.Join(err, stream.Close())
}

func (c *complete) ContainerStats(context.Context) ([]runtime.ContainerUsage, error) {
	return []runtime.ContainerUsage{{PodUID: "uid-web", Name: "c", Running: true, CPU: runtime.CPUUsage{At: time.Now(), UsageCoreNanoSeconds: 42}}}, nil
}

// startReal runs an agent outside a bubble until its pod runs.
func startReal(t *testing.T, p provider.Provider) *agent.Agent {
	t.Helper()
	rt, err := provider.New(provider.Config{Provider: p})
	require.NoError(t, err)
	source := podsource.NewMemory()
	source.Set(newTestPod("web"))
	a, err := agent.New(agent.WithNodeName("n"), agent.WithRootDir(t.TempDir()), agent.WithRuntime(rt), agent.WithSource("memory", source),
		agent.WithNode(node.Config{DisableCgroups: true}))
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- a.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		assert.NoError(t, <-done)
		assert.NoError(t, rt.Close())
		assert.NoError(t, rt.Close(), "again")
	})
	require.Eventually(t, func() bool {
		pod, err := a.Pod("default", "web")
		return err == nil && pod.Status.Phase == corev1.PodRunning
	}, time.Minute, 10*time.Millisecond)
	return a
}

func TestRuntime_ExecAndAttach(t *testing.T) {
	a := startReal(t, &complete{updating: updating{newMemory()}})
	var out, errOut bytes.Buffer
	require.NoError(t, a.Exec(t.Context(), "default", "web", "c", []string{"echo", "hi"}, podstream.Options{Stdout: &out}))
	assert.Equal(t, "default web c echo hi", out.String())

	out.Reset()
	err := a.Exec(t.Context(), "default", "web", "", []string{"fail"}, podstream.Options{Stdout: &out, Stderr: &errOut})
	assert.Equal(t, podstream.ExitError{Code: 3}, err)
	assert.Equal(t, "failed\n", errOut.String())

	require.NoError(t, a.Exec(t.Context(), "default", "web", "", []string{"cat"}, podstream.Options{Stdin: strings.NewReader("input"), Stdout: &out}))
	assert.Equal(t, "input", out.String())

	out.Reset()
	sizes := make(chan podstream.TerminalSize, 1)
	sizes <- podstream.TerminalSize{Width: 7, Height: 2}
	require.NoError(t, a.Exec(t.Context(), "default", "web", "", []string{"size"}, podstream.Options{Stdout: &out, TTY: true, Resize: sizes}))
	assert.Equal(t, "xxxxxxx", out.String())

	require.Error(t, a.Exec(t.Context(), "default", "web", "", []string{"panic"}, podstream.Options{Stdout: &out}))
	require.ErrorIs(t, a.Exec(t.Context(), "default", "web", "other", []string{"echo"}, podstream.Options{Stdout: &out}), runtime.ErrNotFound)

	out.Reset()
	require.NoError(t, a.Attach(t.Context(), "default", "web", "c", podstream.Options{Stdout: &out}))
	assert.Equal(t, "attached to web/c", out.String())
	out.Reset()
	require.NoError(t, a.Attach(t.Context(), "default", "web", "c", podstream.Options{Stdin: strings.NewReader("x"), Stdout: &out}))
	assert.Equal(t, "x", out.String())
}

func TestRuntime_PortForward(t *testing.T) {
	a := startReal(t, &complete{updating: updating{newMemory()}})
	f, err := a.PortForward(t.Context(), "default", "web")
	require.NoError(t, err)
	defer f.Close()
	conn, err := f.Dial(80)
	require.NoError(t, err)
	_, err = io.WriteString(conn, "ping")
	require.NoError(t, err)
	b, err := io.ReadAll(conn)
	require.NoError(t, err)
	assert.Equal(t, "web ping", string(b))
}

func TestRuntime_ReadLog(t *testing.T) {
	a := startReal(t, &complete{updating: updating{newMemory()}})
	var out bytes.Buffer
	require.NoError(t, a.Logs(t.Context(), "default", "web", &corev1.PodLogOptions{}, &out, &out))
	assert.Equal(t, "log of default/web/c\n", out.String())
	out.Reset()
	require.NoError(t, a.Logs(t.Context(), "default", "web", &corev1.PodLogOptions{}, nil, &out))
	assert.Equal(t, "log of default/web/c\n", out.String())

	require.ErrorIs(t, a.Logs(t.Context(), "default", "web", &corev1.PodLogOptions{Previous: true}, &out, &out), runtime.ErrNotFound)
	require.ErrorIs(t, a.Logs(t.Context(), "default", "web", &corev1.PodLogOptions{Container: "other"}, &out, &out), runtime.ErrNotFound)
	require.ErrorContains(t, a.Logs(t.Context(), "default", "web", &corev1.PodLogOptions{Timestamps: true}, &out, &out), "no clock")

	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, a.Logs(ctx, "default", "web", &corev1.PodLogOptions{Follow: true}, &out, &out), context.DeadlineExceeded)
}

// What a provider does not implement is reported in plain words.
func TestRuntime_Unsupported(t *testing.T) {
	a := startReal(t, newMemory())
	var out bytes.Buffer
	_, forwardErr := a.PortForward(t.Context(), "default", "web")
	_, runErr := a.RunCommand(t.Context(), mustPod(t, a), "c", []string{"echo"})
	for what, err := range map[string]error{
		"reading logs":             a.Logs(t.Context(), "default", "web", &corev1.PodLogOptions{}, &out, &out),
		"exec":                     a.Exec(t.Context(), "default", "web", "c", []string{"echo"}, podstream.Options{Stdout: &out}),
		"attach":                   a.Attach(t.Context(), "default", "web", "c", podstream.Options{Stdout: &out}),
		"port-forward":             forwardErr,
		"restarting one container": a.Restart(t.Context(), "default", "web", "c"),
		"exec ":                    runErr,
	} {
		require.ErrorIs(t, err, runtime.ErrUnsupported, what)
		require.ErrorContains(t, err, strings.TrimSpace(what)+" is not supported by this provider")
	}
}

func mustPod(t *testing.T, a *agent.Agent) *corev1.Pod {
	t.Helper()
	pod, err := a.Pod("default", "web")
	require.NoError(t, err)
	return pod
}

func TestRuntime_Exec(t *testing.T) {
	p := &complete{updating: updating{newMemory()}}
	a := startReal(t, p)
	out, err := a.RunCommand(t.Context(), mustPod(t, a), "c", []string{"echo", "hi"})
	require.NoError(t, err)
	assert.Equal(t, "default web c echo hi", string(out))
	_, err = a.RunCommand(t.Context(), mustPod(t, a), "c", []string{"fail"})
	require.ErrorContains(t, err, "exit code 3")

	rt := a.Components().Runtime
	out, code, err := rt.Exec(t.Context(), "uid-web/c", []string{"fail"}, time.Minute, 4)
	require.NoError(t, err)
	assert.Equal(t, 3, code)
	assert.Equal(t, "fail", string(out), "cut at the limit")
	_, _, err = rt.Exec(t.Context(), "uid-web/c", []string{"hang"}, time.Millisecond, 4)
	require.ErrorIs(t, err, runtime.ErrDeadlineExceeded)
	_, _, err = rt.Exec(t.Context(), "missing/c", []string{"echo"}, 0, 4)
	require.ErrorIs(t, err, runtime.ErrNotFound)
}

func TestRuntime_Stats(t *testing.T) {
	a := startReal(t, &complete{updating: updating{newMemory()}})
	summary, err := a.Stats(t.Context())
	require.NoError(t, err)
	require.Len(t, summary.Pods, 1)
	require.Len(t, summary.Pods[0].Containers, 1)
	assert.Equal(t, uint64(42), *summary.Pods[0].Containers[0].CPU.UsageCoreNanoSeconds)
	_, ok := runtime.Capability[runtime.ContainerStatsReporter](newTestRuntime(t, newMemory()))
	assert.False(t, ok)
}

// Close ends streams, and further ones are refused.
func TestRuntime_Close(t *testing.T) {
	a := startReal(t, &complete{updating: updating{newMemory()}})
	rt := a.Components().Runtime.(*provider.Runtime)
	waiting := make(chan error, 1)
	out, in := io.Pipe()
	go func() {
		waiting <- a.Exec(t.Context(), "default", "web", "c", []string{"wait"}, podstream.Options{Stdout: in})
	}()
	_, err := io.ReadFull(out, make([]byte, len("begun")))
	require.NoError(t, err)
	ended := make(chan error, 1)
	reader, writer := io.Pipe()
	go func() {
		ended <- a.Exec(t.Context(), "default", "web", "c", []string{"cat"}, podstream.Options{Stdin: reader, Stdout: io.Discard})
	}()
	_, err = io.WriteString(writer, "begun")
	require.NoError(t, err)
	require.NoError(t, rt.Close())
	require.Error(t, <-ended)
	require.Error(t, <-waiting)
	_ = writer.Close()
	err = a.Exec(t.Context(), "default", "web", "c", []string{"echo"}, podstream.Options{Stdout: io.Discard})
	require.ErrorContains(t, err, "closed")
}

func newTestRuntime(t *testing.T, p provider.Provider) *provider.Runtime {
	t.Helper()
	rt, err := provider.New(provider.Config{Provider: p})
	require.NoError(t, err)
	return rt
}
