package provider_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/podstream"
	"github.com/sublet-dev/agent/runtime"
)

// logging is a provider whose log and commands a test gives.
type logging struct {
	*memory
	log io.ReadCloser
	err error
	run func(podstream.Options) error
}

func (l logging) GetContainerLogs(context.Context, string, string, string, *corev1.PodLogOptions) (io.ReadCloser, error) {
	return l.log, l.err
}

func (l logging) RunInContainer(ctx context.Context, _, _, _ string, _ []string, s podstream.Options) error {
	err := l.run(s)
	if err == nil && ctx.Err() == nil {
		<-ctx.Done()
	}
	return err
}

// closer counts the calls of Close.
type closer struct {
	io.Reader
	closed int
}

func (c *closer) Close() error { c.closed++; return nil }

func TestRuntime_ReadLog_Errors(t *testing.T) {
	broken := errors.New("connection reset")
	missing := errors.Join(errors.New("job 7"), runtime.ErrNotFound)
	for name, c := range map[string]struct {
		p    logging
		want string
	}{
		"no log":          {logging{}, "read log: the provider returned no log"},
		"a broken one":    {logging{log: io.NopCloser(iotest.ErrReader(broken))}, "connection reset"},
		"a missing pod":   {logging{err: missing}, "read log: job 7\nnot found"},
		"another error":   {logging{err: falseNotFound{}}, "read log: found"},
		"of another kind": {logging{err: nfError{}}, "read log: not found: gone"},
	} {
		c.p.memory = newMemory()
		err := newTestRuntime(t, c.p).ReadLog(t.Context(), newTestPod("web"), "c", &corev1.PodLogOptions{}, io.Discard, nil)
		require.EqualError(t, err, c.want, name)
	}
}

// falseNotFound has the method of errors of virtual-kubelet, and means something else.
type falseNotFound struct{}

func (falseNotFound) Error() string  { return "found" }
func (falseNotFound) NotFound() bool { return false }

// A log is closed once, when it has ended or is not needed any more.
func TestRuntime_ReadLog_ClosesLog(t *testing.T) {
	log := &closer{Reader: strings.NewReader("text")}
	var out bytes.Buffer
	require.NoError(t, newTestRuntime(t, logging{memory: newMemory(), log: log}).ReadLog(t.Context(), newTestPod("web"), "c", &corev1.PodLogOptions{}, &out, nil))
	assert.Equal(t, "text", out.String())
	assert.Equal(t, 1, log.closed)
}

// Who follows a log in which nothing is written learns that it is there.
func TestRuntime_ReadLog_FollowsSilentLog(t *testing.T) {
	log, end := io.Pipe()
	isThere, done := make(chan struct{}), make(chan error, 1)
	go func() {
		done <- newTestRuntime(t, logging{memory: newMemory(), log: log}).ReadLog(t.Context(), newTestPod("web"), "c", &corev1.PodLogOptions{Follow: true},
			writerFunc(func([]byte) { close(isThere) }), nil)
	}()
	select {
	case <-isThere:
	case <-time.After(time.Minute):
		t.Error("nothing was written")
	}
	require.NoError(t, end.Close())
	require.NoError(t, <-done)
}

// writerFunc is called with what is written.
type writerFunc func(b []byte)

func (f writerFunc) Write(b []byte) (int, error) {
	f(b)
	return len(b), nil
}

// panicking is a log that has nothing, and panics when it is closed during a Read.
type panicking struct{ closed chan struct{} }

func (p panicking) Read([]byte) (int, error) {
	<-p.closed
	return 0, io.EOF
}

func (p panicking) Close() error {
	defer close(p.closed)
	panic("the log is being read")
}

// AG-9: a client that disconnects has the log closed, whose panic ends nothing else.
func TestRuntime_ReadLog_PanicInClose(t *testing.T) {
	log := panicking{make(chan struct{})}
	ctx, cancel := context.WithCancelCause(t.Context())
	disconnected := errors.New("client is gone")
	cancel(disconnected)
	err := newTestRuntime(t, logging{memory: newMemory(), log: log}).ReadLog(ctx, newTestPod("web"), "c", &corev1.PodLogOptions{}, io.Discard, nil)
	require.ErrorIs(t, err, disconnected)
}

// The output of a command is cut, and what it has written so far is returned if it takes too
// long.
func TestRuntime_Exec_Output(t *testing.T) {
	p := logging{memory: newMemory(), run: func(s podstream.Options) error {
		for _, text := range []string{"ab", "cd", "ef"} {
			n, err := io.WriteString(s.Stdout, text)
			assert.Equal(t, 2, n)
			assert.NoError(t, err)
		}
		return nil
	}}
	rt := newTestRuntime(t, p)
	create(t, rt, newTestPod("web"))
	out, code, err := rt.Exec(t.Context(), "uid-web/c", []string{"x"}, 10*time.Millisecond, 5)
	require.ErrorIs(t, err, runtime.ErrDeadlineExceeded)
	assert.Equal(t, "abcde", string(out))
	assert.Zero(t, code)
}

// A pod that is not known is looked up in the list, also if the provider finds single pods.
func TestRuntime_Pod_Unknown(t *testing.T) {
	p := getting{newMemory()}
	rt := newTestRuntime(t, p)
	p.set(newTestPod("web"), corev1.PodRunning)
	assert.NotNil(t, observe(t, rt, "web").Object)
	assert.Equal(t, []string{"GetPods"}, p.calls)
	p.remove("web")
	assert.Empty(t, listed(t, rt))
	p.calls = nil
	assert.Nil(t, observe(t, rt, "web").Object)
	assert.Equal(t, []string{"GetPods"}, p.calls, "it is forgotten")
}

// What a provider reports counts, also if it contradicts itself.
func TestRuntime_Pod_Contradictions(t *testing.T) {
	p := newMemory()
	rt := newTestRuntime(t, p)
	for _, phase := range []corev1.PodPhase{corev1.PodSucceeded, corev1.PodRunning, corev1.PodFailed} {
		p.set(newTestPod("web"), phase)
		assert.Equal(t, phase, observe(t, rt, "web").Object.Status.Phase)
	}
	missing := observe(t, rt, "missing")
	assert.Equal(t, runtime.Pod{UID: "uid-missing"}, missing)
}

// An error that says that a pod does not exist counts more than the pod beside it.
func TestRuntime_Pod_FoundAndNotFound(t *testing.T) {
	rt := newTestRuntime(t, contradicting{getting{newMemory()}})
	create(t, rt, newTestPod("web"))
	assert.Nil(t, observe(t, rt, "web").Object)
}

type contradicting struct{ getting }

func (contradicting) GetPod(context.Context, string, string) (*corev1.Pod, error) {
	return newTestPod("web"), runtime.ErrNotFound
}

// A pod without UID is found by its namespace and its name.
func TestRuntime_Pods_WithoutUIDs(t *testing.T) {
	elsewhere := newTestPod("web")
	elsewhere.UID, elsewhere.Namespace = "", "other"
	rt := newTestRuntime(t, &listing{memory: newMemory(), pods: []*corev1.Pod{elsewhere}})
	create(t, rt, newTestPod("web"))
	assert.Empty(t, listed(t, rt))
}

// A pod that was reported once and is lost is created again at once.
func TestRuntime_SyncPod_AfterItWasReported(t *testing.T) {
	p := newMemory()
	p.on("CreatePod", func(context.Context, *corev1.Pod) error { return errHandled })
	rt := newTestRuntime(t, p)
	create(t, rt, newTestPod("web"))
	assert.Empty(t, listed(t, rt))
	create(t, rt, newTestPod("web"))
	assert.Equal(t, []string{"CreatePod web"}, p.called(), "it may not be reported yet")
	p.set(newTestPod("web"), corev1.PodRunning)
	listed(t, rt)
	p.remove("web")
	create(t, rt, newTestPod("web"))
	assert.Equal(t, []string{"CreatePod web"}, p.called())
}
