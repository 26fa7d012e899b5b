package simulated

import (
	"bytes"
	"context"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/runtime/embedded"
	"github.com/sublet-dev/agent/runtime/embedded/internal/embeddedtest"
)

// attached attaches to a container, hands it input, and returns what it says.
func (g *rig) attached(t *testing.T, id, input string) string {
	t.Helper()
	var out, errOut bytes.Buffer
	require.NoError(t, g.AttachStreams(t.Context(), id, embedded.IO{Stdin: strings.NewReader(input), Stdout: &out, Stderr: &errOut}, nil))
	return out.String() + errOut.String()
}

func TestExecutor_ReadsInput(t *testing.T) {
	tests := map[string]struct {
		cmd         []string
		input, want string
		code        int32
	}{
		"a shell":                     {[]string{"sh"}, "echo -n hello\n", "hello", 0},
		"a shell that waits":          {[]string{"/bin/sh"}, "sleep 5; echo a\n\necho b\n", "a\nb\n", 0},
		"a shell that is not to end":  {[]string{"sh"}, "false && exit 3\necho a\n", "a\n", 0},
		"a shell that is told to end": {[]string{"sh", "-i"}, "exit 3\necho never\n", "", 3},
		"a shell's last code":         {[]string{"sh"}, "false\n", "", 1},
		"what no simulation knows":    {[]string{"sh"}, "nginx\n", "sh: command not simulated: nginx\n", 127},
		"cat":                         {[]string{"cat"}, "a\nb", "a\nb", 0},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := newRig(t, Config{})
				id := g.Start(t, g.RunPod(t, embeddedtest.PodConfig("p")), func(c *v1.ContainerConfig) { c.Stdin, c.StdinOnce = true, true }, tc.cmd...)
				assert.Equal(t, tc.want, g.attached(t, id, tc.input))
				st := g.Inspect(t, id)
				assert.Equal(t, v1.ContainerState_CONTAINER_EXITED, st.GetState())
				assert.Equal(t, tc.code, st.GetExitCode())
			})
		})
	}
}

func TestExecutor_DiscardsUnusedInput(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, Config{})
		id := g.Start(t, g.RunPod(t, embeddedtest.PodConfig("p")), func(c *v1.ContainerConfig) { c.Stdin, c.StdinOnce = true, true }, "sleep", "10")
		in, w := io.Pipe()
		go func() {
			_, _ = io.WriteString(w, strings.Repeat("x", 1<<20))
			_ = w.Close()
		}()
		require.NoError(t, g.AttachStreams(t.Context(), id, embedded.IO{Stdin: in}, nil))
		assert.Equal(t, 10*time.Second, time.Duration(g.Inspect(t, id).GetFinishedAt()-g.Inspect(t, id).GetStartedAt()))
	})
}

func TestExecutor_ShellEndsWhenStopped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, Config{})
		id := g.Start(t, g.RunPod(t, embeddedtest.PodConfig("p")), func(c *v1.ContainerConfig) { c.Stdin = true }, "sh")
		in, w := io.Pipe()
		go func() { _, _ = io.WriteString(w, "sleep 1000\n") }()
		go func() { _ = g.AttachStreams(t.Context(), id, embedded.IO{Stdin: in}, nil) }()
		time.Sleep(time.Second)
		g.Stop(t, id, 5)
		assert.Equal(t, int32(143), g.Inspect(t, id).GetExitCode())
		_ = w.Close()
	})
}

func TestExecutor_ExecReadsInput(t *testing.T) {
	g := newRig(t, Config{})
	id := g.Start(t, g.RunPod(t, embeddedtest.PodConfig("p")), nil)
	var out bytes.Buffer
	code, err := g.ExecStreams(t.Context(), id, embedded.Exec{Cmd: []string{"sh"}, IO: embedded.IO{Stdin: strings.NewReader("echo hello\nexit 4\n"), Stdout: &out, TTY: true}})
	require.NoError(t, err)
	assert.Equal(t, int32(4), code)
	assert.Equal(t, "hello\r\n", out.String())
}

// A command ends with its container.
func TestExecutor_ExecEndsWithTheContainer(t *testing.T) {
	for name, annotation := range map[string]string{"a command": "", "a delay": "sim.sublet.dev/exec-delay: 1h"} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := newRig(t, Config{})
				id := g.Start(t, g.RunPod(t, embeddedtest.PodConfig("p", annotation)), nil, "sleep", "60")
				began := time.Now()
				r, err := g.CRI.ExecSync(t.Context(), &v1.ExecSyncRequest{ContainerId: id, Cmd: []string{"sleep", "3600"}})
				require.NoError(t, err)
				assert.EqualValues(t, 137, r.GetExitCode())
				assert.Equal(t, time.Minute, time.Since(began))
			})
		})
	}
}

// A command whose input has no end ends with its caller, and with the container.
func TestExecutor_ExecWaitsForInput(t *testing.T) {
	for _, command := range []string{"sh", "cat"} {
		t.Run(command, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := newRig(t, Config{})
				id := g.Start(t, g.RunPod(t, embeddedtest.PodConfig("p")), nil, "sleep", "60")
				in, w := io.Pipe()
				defer w.Close()
				exec := func(ctx context.Context) (int32, error) {
					return g.ExecStreams(ctx, id, embedded.Exec{Cmd: []string{command}, IO: embedded.IO{Stdin: in, Stdout: io.Discard}})
				}
				began := time.Now()
				ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
				defer cancel()
				_, err := exec(ctx)
				require.ErrorIs(t, err, context.DeadlineExceeded)
				assert.Equal(t, 5*time.Second, time.Since(began))
				code, err := exec(t.Context())
				assert.Equal(t, time.Minute, time.Since(began))
				require.NoError(t, err)
				assert.EqualValues(t, 137, code)
			})
		})
	}
}
