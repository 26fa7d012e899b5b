package main

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sublet-dev/agent/internal/logtest"
)

// bin is the program, built once for all tests where every user can run it.
var bin string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "quickstart-test-")
	if err != nil {
		panic(err)
	}
	bin = filepath.Join(dir, "quickstart")
	if out, err := exec.Command("go", "build", "-o", bin, ".").CombinedOutput(); err != nil {
		panic(string(out))
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		panic(err)
	}
	code := m.Run()
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

// run starts the program, without privileges if possible, and returns its output.
func run(t *testing.T, end func(p *os.Process, output func() string), args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, bin, args...)
	if os.Geteuid() == 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	}
	cmd.Dir = "/"
	cmd.Env = append(os.Environ(), "HOME=/", "TMPDIR=/tmp")
	var out logtest.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	require.NoError(t, cmd.Start())
	if end != nil {
		end(cmd.Process, out.String)
	}
	err := cmd.Wait()
	return out.String(), err
}

// All pods behave as expected for an ordinary user, and leave nothing behind.
func TestQuickstart_AllSamplesBehaveAsExpected(t *testing.T) {
	out, err := run(t, nil, "-for", "20s")
	if err != nil { // on a busy machine the samples need longer
		t.Log(out)
		out, err = run(t, nil, "-for", "100s")
	}
	require.NoError(t, err, out)
	require.NotContains(t, out, "FAIL", out)
	require.Equal(t, len(expectations)+3, strings.Count(out, "  ok   "), out)
	for _, want := range []string{"broken.yaml", "restartPolicy", "volumeMounts", "image", "CrashLoopBackOff", "the last valid version keeps running", "a page with the timeline of each pod: http://127.0.0.1:"} {
		require.Contains(t, out, want)
	}
	require.NotContains(t, out, "\x1b[", "plain lines if the output is not a terminal")
}

// A quickstart that is stopped early does not report success.
func TestQuickstart_FailsWhenStoppedEarly(t *testing.T) {
	out, err := run(t, func(p *os.Process, output func() string) {
		require.Eventually(t, func() bool { return strings.Contains(output(), " Running ") }, time.Minute, time.Millisecond, "a pod runs")
		require.NoError(t, p.Signal(os.Interrupt))
	}, "-for", "30m") // a third of which would pass before the first manifest is deleted
	var exit *exec.ExitError
	require.ErrorAs(t, err, &exit, out)
	require.Equal(t, 1, exit.ExitCode())
	require.Contains(t, out, "FAIL deleted ")
	require.Contains(t, out, "ok   all ", "ctrl-c terminates the pods gracefully")
}

func TestQuickstart_ChecksArguments(t *testing.T) {
	for _, args := range [][]string{{"-nonsense"}, {"web"}, {"-for", "-1s"}, {"-for", "soon"}} {
		out, err := run(t, nil, args...)
		var exit *exec.ExitError
		require.ErrorAs(t, err, &exit, out)
		require.Equal(t, 2, exit.ExitCode(), out)
	}
}
