package hostprocess

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/runtime/embedded"
	"github.com/sublet-dev/agent/runtime/embedded/internal/embeddedtest"
)

// blocking is the output of a client that takes nothing before the channel is closed.
type blocking chan struct{}

func (b blocking) Write(p []byte) (int, error) {
	<-b
	return len(p), nil
}

// isOutputBlocked reports whether the output of a container waits for an attached client.
func isOutputBlocked() bool { return waits("[sync.Cond.Wait", "embedded.output.Write(") }

// waits reports whether a goroutine is in a state and in a call.
func waits(state, call string) bool {
	stacks := make([]byte, 1<<20)
	for g := range strings.SplitSeq(string(stacks[:runtime.Stack(stacks, true)]), "\n\n") {
		is, calls, _ := strings.Cut(g, "\n")
		if strings.Contains(is, state) && strings.Contains(calls, call) {
			return true
		}
	}
	return false
}

// A container that prints without end is stopped although an attached client takes
// nothing of it.
func TestExecutor_StopsWhileAnAttachedClientBlocks(t *testing.T) {
	for name, stop := range map[string]func(g *rig, id string) error{
		"StopContainer": func(g *rig, id string) error {
			_, err := g.StopContainer(t.Context(), &v1.StopContainerRequest{ContainerId: id})
			return err
		},
		"Close": func(g *rig, _ string) error { return g.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			g := hostRig(t)
			id := g.Start(t, g.RunPod(t, embeddedtest.PodConfig("p")), nil, "yes")
			stdout, attached := make(blocking), make(chan error, 1)
			go func() { attached <- g.AttachStreams(t.Context(), id, embedded.IO{Stdout: stdout}, nil) }()
			t.Cleanup(func() {
				close(stdout)
				<-attached
			})
			require.Eventually(t, isOutputBlocked, time.Minute, time.Millisecond)

			stopped := make(chan error, 1)
			go func() { stopped <- stop(g, id) }()
			select {
			case err := <-stopped:
				require.NoError(t, err)
			case <-time.After(time.Minute):
				require.FailNow(t, "the container is not stopped")
			}
			r, err := g.ContainerStatus(t.Context(), &v1.ContainerStatusRequest{ContainerId: id})
			require.NoError(t, err)
			assert.Equal(t, v1.ContainerState_CONTAINER_EXITED, r.GetStatus().GetState())
			assert.Equal(t, int32(137), r.GetStatus().GetExitCode())
			assert.Empty(t, attached, "the client blocks")
			assert.Eventually(t, func() bool { return !isOutputBlocked() }, time.Minute, time.Millisecond)
		})
	}
}

// A client that takes nothing costs neither the log nor another client the last output of
// a container, and has all of it in the end.
func TestExecutor_LogsTheRestWhileAnAttachedClientBlocks(t *testing.T) {
	g := hostRig(t)
	cfg, path := embeddedtest.WithLogs(t, embeddedtest.PodConfig("p"))
	fifo := filepath.Join(t.TempDir(), "fifo")
	require.NoError(t, unix.Mkfifo(fifo, 0o600))
	id := g.Start(t, g.RunPod(t, cfg), nil, "cat", fifo)
	input, err := os.OpenFile(fifo, os.O_WRONLY, 0)
	require.NoError(t, err)
	defer func() { _ = input.Close() }()

	var want, other, blocked bytes.Buffer
	write := func(text string) {
		want.WriteString(text)
		_, err := input.WriteString(text)
		require.NoError(t, err)
	}
	attach := func(stdout io.Writer) <-chan error {
		attached := make(chan error, 1)
		go func() { attached <- g.AttachStreams(t.Context(), id, embedded.IO{Stdout: stdout}, nil) }()
		return attached
	}
	otherAttached := attach(&other)
	require.Eventually(t, func() bool { return waits("[select", "embedded.(*Runtime).AttachStreams(") }, time.Minute, time.Millisecond)
	release := make(blocking)
	blockedAttached := attach(io.MultiWriter(release, &blocked))
	require.Eventually(t, func() bool {
		if isOutputBlocked() {
			return true
		}
		write("x\n")
		return false
	}, time.Minute, time.Millisecond)
	rest := strings.Repeat("y\n", 16<<10)
	write(rest)
	require.NoError(t, input.Close())

	g.AwaitExit(t, id)
	assert.Equal(t, strings.Count(want.String(), "\n"), len(embeddedtest.ReadLog(t, path)), "lines of the log")
	require.NoError(t, <-otherAttached)
	assert.True(t, other.String() == want.String(), "the other client lacks output")
	assert.Empty(t, blockedAttached)
	close(release)
	require.NoError(t, <-blockedAttached)
	got := blocked.String()
	assert.True(t, len(got) > len(rest) && strings.HasSuffix(want.String(), got), "the client lacks output")
}

// disconnected is the output of a client that has disconnected.
type disconnected struct{}

func (disconnected) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }

// A command that prints without end ends with its client.
func TestExecutor_EndsACommandOfADisconnectedClient(t *testing.T) {
	for name, tc := range map[string]struct {
		tty   bool
		codes []int32
	}{
		"with a pipe":     {false, []int32{128 + int32(unix.SIGPIPE)}},
		"with a terminal": {true, []int32{128 + int32(unix.SIGHUP), 1}}, // the write may fail before the signal arrives
	} {
		t.Run(name, func(t *testing.T) {
			g := hostRig(t)
			id := g.Start(t, g.RunPod(t, embeddedtest.PodConfig("p")), nil, "sleep", "1000")
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			code, err := g.ExecStreams(ctx, id, embedded.Exec{Cmd: []string{"yes"}, IO: embedded.IO{Stdout: disconnected{}, TTY: tc.tty}})
			require.NoError(t, err)
			assert.Contains(t, tc.codes, code)
		})
	}
}

// A command has exited for its client once that has taken all output, or has canceled it.
func TestExecutor_WaitsForTheClientOfACommand(t *testing.T) {
	const size = 60_000 // a pipe has room for it
	for name, canceled := range map[string]bool{"that takes it later": false, "that cancels it": true} {
		t.Run(name, func(t *testing.T) {
			g := hostRig(t)
			id := g.Start(t, g.RunPod(t, embeddedtest.PodConfig("p")), nil, "sleep", "1000")
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			release, ended := make(blocking), make(chan error, 1)
			var stdout bytes.Buffer
			go func() {
				script := fmt.Sprintf("printf x; head -c %d /dev/zero", size)
				_, err := g.ExecStreams(ctx, id, embedded.Exec{Cmd: []string{"sh", "-c", script}, IO: embedded.IO{Stdout: io.MultiWriter(release, &stdout)}})
				ended <- err
			}()
			require.Eventually(t, func() bool { return waits("[select", "hostprocess.(*outputs).awaitTaken(") }, time.Minute, time.Millisecond)
			if canceled {
				cancel()
				require.ErrorIs(t, <-ended, context.Canceled)
			}
			close(release)
			if !canceled {
				require.NoError(t, <-ended)
				assert.Equal(t, size+1, stdout.Len())
			}
		})
	}
}
