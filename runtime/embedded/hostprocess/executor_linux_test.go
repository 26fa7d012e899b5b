package hostprocess

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/runtime/embedded"
	"github.com/sublet-dev/agent/runtime/embedded/internal/embeddedtest"
)

// hostRig is a runtime of real processes, as an ordinary user has it.
func hostRig(t testing.TB) *rig {
	return newRig(t, New(Config{Root: t.TempDir(), Unprivileged: true}))
}

func TestExecutor_ReportsExits(t *testing.T) {
	tests := map[string]struct {
		script string
		code   int32
		reason string
	}{
		"well":        {"exit 0", 0, "Completed"},
		"with a code": {"exit 42", 42, "Error"},
		"by a signal": {"kill -KILL $$", 137, "Error"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			g := hostRig(t)
			st := g.AwaitExit(t, g.Start(t, g.RunPod(t, embeddedtest.PodConfig("p")), nil, "sh", "-c", tc.script))
			assert.Equal(t, tc.code, st.GetExitCode())
			assert.Equal(t, tc.reason, st.GetReason())
			assert.LessOrEqual(t, st.GetStartedAt(), st.GetFinishedAt())
		})
	}
}

func TestExecutor_LogsOutput(t *testing.T) {
	g := hostRig(t)
	cfg, path := embeddedtest.WithLogs(t, embeddedtest.PodConfig("p"))
	const maxLogLine = 16 << 10
	long := strings.Repeat("x", 20<<10)
	id := g.Start(t, g.RunPod(t, cfg), nil, "sh", "-c", "echo out; echo err >&2; printf 'no end'; printf "+long+" >&2")
	g.AwaitExit(t, id)
	assert.ElementsMatch(t, []string{
		"stdout F out", "stderr F err", "stdout F no end", "stderr P " + long[:maxLogLine], "stderr F " + long[maxLogLine:],
	}, embeddedtest.ReadLog(t, path))
}

func TestExecutor_SetsEnvironmentAndDirectory(t *testing.T) {
	t.Setenv("SECRET_OF_THE_AGENT", "1")
	g := hostRig(t)
	cfg, path := embeddedtest.WithLogs(t, embeddedtest.PodConfig("p"))
	cfg.Hostname = "box"
	dir := t.TempDir()
	id := g.Start(t, g.RunPod(t, cfg), func(c *v1.ContainerConfig) {
		c.Envs = []*v1.KeyValue{{Key: "A", Value: []byte("1 2")}}
		c.WorkingDir = dir
	}, "sh", "-c", `echo "$A|$HOSTNAME|$SECRET_OF_THE_AGENT|$(pwd)"`)
	g.AwaitExit(t, id)
	assert.Equal(t, []string{"stdout F 1 2|box||" + dir}, embeddedtest.ReadLog(t, path))
}

func TestExecutor_SetsEachVariableOnce(t *testing.T) {
	g := newRig(t, New(Config{Root: t.TempDir(), Unprivileged: true, Env: []string{"A=config", "B=config"}}))
	cfg, path := embeddedtest.WithLogs(t, embeddedtest.PodConfig("p"))
	id := g.Start(t, g.RunPod(t, cfg), func(c *v1.ContainerConfig) {
		c.Envs = []*v1.KeyValue{{Key: "A", Value: []byte("pod")}, {Key: EnvContainerID, Value: []byte("another")}}
	}, "grep", "-zaE", "^(A|B|"+EnvContainerID+")=", "/proc/self/environ")
	g.AwaitExit(t, id)
	var lines []string
	for _, line := range embeddedtest.ReadLog(t, path) {
		lines = append(lines, strings.Split(strings.Trim(strings.TrimPrefix(line, "stdout F "), "\x00"), "\x00")...)
	}
	assert.ElementsMatch(t, []string{"A=pod", "B=config", EnvContainerID + "=" + id}, lines)
}

// RT-11
func TestExecutor_SetsTheOOMScore(t *testing.T) {
	g := hostRig(t)
	cfg, path := embeddedtest.WithLogs(t, embeddedtest.PodConfig("p"))
	id := g.Start(t, g.RunPod(t, cfg), func(c *v1.ContainerConfig) {
		c.Linux = &v1.LinuxContainerConfig{Resources: &v1.LinuxContainerResources{OomScoreAdj: 987}}
	}, "sh", "-c", "cat /proc/self/oom_score_adj; exec sleep 1000")
	assert.Equal(t, "987", g.shell(t, id, "cat /proc/self/oom_score_adj"))
	require.Eventually(t, func() bool { return len(embeddedtest.ReadLog(t, path)) > 0 }, time.Minute, 5*time.Millisecond)
	assert.Equal(t, []string{"stdout F 987"}, embeddedtest.ReadLog(t, path))
}

// Programs that draw on their terminal need to know its kind.
func TestExecutor_SetsTheKindOfATerminal(t *testing.T) {
	g := hostRig(t)
	sb := g.RunPod(t, embeddedtest.PodConfig("p"))
	for attempt, want := range []string{"xterm", "vt100"} {
		id := g.Start(t, sb, func(c *v1.ContainerConfig) {
			c.Metadata.Attempt = uint32(attempt)
			if want != "xterm" {
				c.Envs = []*v1.KeyValue{{Key: "TERM", Value: []byte(want)}}
			}
		}, "sleep", "1000")
		var stdout bytes.Buffer
		_, err := g.ExecStreams(t.Context(), id, embedded.Exec{Cmd: []string{"sh", "-c", "echo $TERM"}, IO: embedded.IO{Stdout: &stdout, TTY: true}})
		require.NoError(t, err)
		assert.Equal(t, want, strings.TrimSpace(stdout.String()))
	}
}

// A command prints to its terminal, whether or not its client wants to see it.
func TestExecutor_EndsCommandsWhoseTerminalIsNotRead(t *testing.T) {
	g := hostRig(t)
	id := g.Start(t, g.RunPod(t, embeddedtest.PodConfig("p")), nil, "sleep", "1000")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	code, err := g.ExecStreams(ctx, id, embedded.Exec{
		Cmd: []string{"sh", "-c", "head -c 1000000 /dev/zero; exit 4"}, IO: embedded.IO{Stdin: strings.NewReader(""), TTY: true},
	})
	require.NoError(t, err)
	assert.Equal(t, int32(4), code)
}

func TestExecutor_Stops(t *testing.T) {
	g := hostRig(t)
	sb := g.RunPod(t, embeddedtest.PodConfig("p"))
	// start starts a container of a script and waits until it has set its traps.
	start := func(attempt uint32, signal v1.Signal, traps string) (id string) {
		file := filepath.Join(t.TempDir(), "pid")
		id = g.Start(t, sb, func(c *v1.ContainerConfig) { c.Metadata.Attempt, c.StopSignal = attempt, signal }, "sh", "-c", traps+"; echo $$ > "+file+"; while :; do sleep 0.01; done")
		pidIn(t, file)
		return id
	}
	polite := start(0, v1.Signal_SIGNAL_RUNTIME_DEFAULT, "trap 'exit 7' TERM")
	g.Stop(t, polite, 60)
	assert.Equal(t, int32(7), g.Inspect(t, polite).GetExitCode())

	deaf := start(1, v1.Signal_SIGNAL_RUNTIME_DEFAULT, "trap '' TERM")
	begin := time.Now()
	g.Stop(t, deaf, 1)
	assert.GreaterOrEqual(t, time.Since(begin), time.Second)
	assert.Equal(t, int32(137), g.Inspect(t, deaf).GetExitCode())

	other := start(2, v1.Signal_SIGNAL_SIGUSR1, "trap 'exit 9' USR1; trap '' TERM")
	g.Stop(t, other, 60)
	assert.Equal(t, int32(9), g.Inspect(t, other).GetExitCode())
}

// alive reports whether a process is there and no zombie.
func alive(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && !strings.Contains(string(b), ") Z ")
}

// pidIn reads the number that a container wrote to a file.
func pidIn(t *testing.T, path string) int {
	t.Helper()
	var pid int
	require.Eventually(t, func() bool {
		b, _ := os.ReadFile(path)
		pid, _ = strconv.Atoi(strings.TrimSpace(string(b)))
		return pid > 0
	}, time.Minute, 5*time.Millisecond)
	return pid
}

func TestExecutor_EndsWithClose(t *testing.T) {
	g := hostRig(t)
	file := filepath.Join(t.TempDir(), "pid")
	g.Start(t, g.RunPod(t, embeddedtest.PodConfig("p")), nil, "sh", "-c", "trap '' TERM; echo $$ > "+file+"; sleep 1000")
	pid := pidIn(t, file)
	require.NoError(t, g.Close())
	assert.False(t, alive(pid))
}

func TestExecutor_HasItsGracePeriodAtClose(t *testing.T) {
	g := newRig(t, New(Config{Root: t.TempDir(), Unprivileged: true}))
	dir := t.TempDir()
	bye := filepath.Join(dir, "bye")
	g.Start(t, g.RunPod(t, embeddedtest.PodConfig("p")), func(c *v1.ContainerConfig) {
		c.Annotations = map[string]string{"io.kubernetes.pod.terminationGracePeriod": "30"}
	}, "sh", "-c", "trap 'echo bye > "+bye+"; exit 0' TERM; echo > "+dir+"/ready; while :; do sleep 0.01; done")
	require.Eventually(t, func() bool { _, err := os.Stat(filepath.Join(dir, "ready")); return err == nil }, time.Minute, time.Millisecond)
	require.NoError(t, g.Close())
	assert.FileExists(t, bye)
}

// A process that embeds a runtime and is killed takes its containers along.
func TestExecutor_DiesWithTheEmbeddingProcess(t *testing.T) {
	if file := os.Getenv("SUBLET_TEST_PID_FILE"); file != "" {
		beKilled(t, file)
		return
	}
	file := filepath.Join(t.TempDir(), "pid")
	cmd := exec.Command(os.Args[0], "-test.run=^TestExecutor_DiesWithTheEmbeddingProcess$")
	cmd.Env = append(os.Environ(), "SUBLET_TEST_PID_FILE="+file, "TMPDIR="+t.TempDir())
	require.NoError(t, cmd.Start())
	pid := pidIn(t, file)
	require.True(t, alive(pid))
	require.NoError(t, cmd.Process.Kill())
	_ = cmd.Wait()
	assert.Eventually(t, func() bool { return !alive(pid) }, time.Minute, time.Millisecond)
}

// beKilled is the process of the test above.
func beKilled(t *testing.T, file string) {
	g := hostRig(t)
	g.AwaitExit(t, g.Start(t, g.RunPod(t, embeddedtest.PodConfig("p")), nil, "sh", "-c", "trap '' TERM; echo $$ > "+file+"; exec sleep 1000"))
}

// The processes and directories of containers whose runtime was killed are removed when
// the next runtime uses the root directory, and not while another one does.
func TestExecutor_RemovesStaleContainersOfAKilledProcess(t *testing.T) {
	if root := os.Getenv("SUBLET_TEST_ROOT"); root != "" {
		g := newRig(t, New(Config{Root: root}))
		g.AwaitExit(t, g.Start(t, g.RunPod(t, embeddedtest.PodConfig("p")), nil, "sh", "-c", "(trap '' TERM HUP; exec setsid env -i sleep 1000) & echo $! > "+root+"/pid; wait"))
		return
	}
	root := t.TempDir()
	cmd := exec.Command(os.Args[0], "-test.run=^TestExecutor_RemovesStaleContainersOfAKilledProcess$")
	cmd.Env = append(os.Environ(), "SUBLET_TEST_ROOT="+root)
	require.NoError(t, cmd.Start())
	pid := pidIn(t, filepath.Join(root, "pid"))
	left, err := filepath.Glob(filepath.Join(root, "containers", "*"))
	require.NoError(t, err)
	require.Len(t, left, 1)

	g := newRig(t, New(Config{Root: root}))
	g.Start(t, g.RunPod(t, embeddedtest.PodConfig("beside")), nil, "true")
	require.True(t, alive(pid), "swept while its runtime lives")
	require.NoError(t, g.Close())

	require.NoError(t, cmd.Process.Kill())
	_ = cmd.Wait()
	require.True(t, alive(pid), "the child of a first process outlives its runtime")
	stranger := exec.Command("sleep", "1000") // says that it is of a container that is not there
	stranger.Env = []string{EnvContainerID + "=" + strings.Repeat("ab", 32)}
	require.NoError(t, stranger.Start())
	defer func() { _, _ = stranger.Process.Kill(), stranger.Wait() }()

	next := newRig(t, New(Config{Root: root})) // the pods may be gone, and no other may come
	assert.Eventually(t, func() bool { return !alive(pid) }, time.Minute, time.Millisecond)
	assert.NoDirExists(t, left[0])
	assert.True(t, alive(stranger.Process.Pid))
	id := next.Start(t, next.RunPod(t, embeddedtest.PodConfig("next")), nil, "sleep", "1000")
	assert.Equal(t, v1.ContainerState_CONTAINER_RUNNING, next.Inspect(t, id).GetState())
}

func TestExecutor_Exec(t *testing.T) {
	g := hostRig(t)
	id := g.Start(t, g.RunPod(t, embeddedtest.PodConfig("p")), func(c *v1.ContainerConfig) {
		c.Envs = []*v1.KeyValue{{Key: "A", Value: []byte("1")}}
	}, "sleep", "1000")
	r, err := g.CRI.ExecSync(t.Context(), &v1.ExecSyncRequest{ContainerId: id, Cmd: []string{"sh", "-c", "echo $A; echo e >&2; exit 3"}})
	require.NoError(t, err)
	assert.Equal(t, "1\n", string(r.GetStdout()))
	assert.Equal(t, "e\n", string(r.GetStderr()))
	assert.Equal(t, int32(3), r.GetExitCode())

	_, err = g.CRI.ExecSync(t.Context(), &v1.ExecSyncRequest{ContainerId: id, Cmd: []string{"sleep", "100"}, Timeout: 1})
	assert.Equal(t, codes.DeadlineExceeded, status.Code(err))
	_, err = g.CRI.ExecSync(t.Context(), &v1.ExecSyncRequest{ContainerId: id, Cmd: []string{"no-such-program"}})
	assert.ErrorContains(t, err, "not found in $PATH")
}

// What a command prints beyond the bound of the CRI is discarded: the response is no larger than
// clients take.
func TestExecutor_ExecBoundsOutput(t *testing.T) {
	g := hostRig(t)
	id := g.Start(t, g.RunPod(t, embeddedtest.PodConfig("p")), nil, "sleep", "1000")
	for _, script := range []string{"head -c 17M /dev/zero", "head -c 9M /dev/zero; head -c 9M /dev/zero >&2"} {
		r, err := g.CRI.ExecSync(t.Context(), &v1.ExecSyncRequest{ContainerId: id, Cmd: []string{"sh", "-c", script}})
		require.NoError(t, err, script)
		assert.Zero(t, r.GetExitCode(), script)
		assert.Greater(t, len(r.GetStdout())+len(r.GetStderr()), 16_000_000, script)
	}
	r, err := g.CRI.ExecSync(t.Context(), &v1.ExecSyncRequest{ContainerId: id, Cmd: []string{"sh", "-c", "head -c 17M /dev/zero; echo failed >&2"}})
	require.NoError(t, err)
	assert.Equal(t, "failed\n", string(r.GetStderr()), "one stream leaves room for the other")
}

func TestExecutor_NamesMountsThatNeedRoot(t *testing.T) {
	g := hostRig(t)
	dir := t.TempDir()
	message := filepath.Join(dir, "message")
	require.NoError(t, os.WriteFile(message, nil, 0o600))
	sb := g.RunPod(t, embeddedtest.PodConfig("p"))
	_, err := g.Create(t, sb, func(c *v1.ContainerConfig) {
		c.Mounts = []*v1.Mount{{ContainerPath: "/data", HostPath: dir}}
	}, "true")
	assert.Equal(t, codes.FailedPrecondition, status.Code(err))
	assert.ErrorContains(t, err, `mount "/data"`)

	// What agents mount into every container is left out, or taken at its own place.
	id := g.Start(t, sb, func(c *v1.ContainerConfig) {
		c.Annotations = map[string]string{"io.kubernetes.container.terminationMessagePath": "/dev/termination-log"}
		c.Mounts = []*v1.Mount{
			{ContainerPath: "/etc/hosts", HostPath: message},
			{ContainerPath: "/dev/termination-log", HostPath: message},
			{ContainerPath: dir, HostPath: dir},
		}
	}, "sh", "-c", "printf bye > $"+EnvTerminationLog)
	g.AwaitExit(t, id)
	b, err := os.ReadFile(message)
	require.NoError(t, err)
	assert.Equal(t, "bye", string(b))
}

func TestExecutor_ReportsStartErrors(t *testing.T) {
	g := hostRig(t)
	sb := g.RunPod(t, embeddedtest.PodConfig("p"))
	_, err := g.Create(t, sb, nil)
	assert.ErrorContains(t, err, "no command")
	id, err := g.Create(t, sb, nil, "no-such-program")
	require.NoError(t, err)
	_, err = g.CRI.StartContainer(t.Context(), &v1.StartContainerRequest{ContainerId: id})
	assert.ErrorContains(t, err, "no-such-program")
	st := g.Inspect(t, id)
	assert.Equal(t, v1.ContainerState_CONTAINER_EXITED, st.GetState())
	assert.Equal(t, "StartError", st.GetReason())
}

func TestExecutor_MeasuresUsage(t *testing.T) {
	g := hostRig(t)
	id := g.Start(t, g.RunPod(t, embeddedtest.PodConfig("p")), nil, "sh", "-c", "head -c 100000 /dev/zero > file; i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done; sleep 1000")
	require.Eventually(t, func() bool {
		r, err := g.CRI.ContainerStats(t.Context(), &v1.ContainerStatsRequest{ContainerId: id})
		require.NoError(t, err)
		s := r.GetStats()
		return s.GetMemory().GetWorkingSetBytes().GetValue() > 100<<10 && s.GetCpu().GetUsageCoreNanoSeconds().GetValue() > 0 &&
			s.GetWritableLayer().GetUsedBytes().GetValue() >= 100000
	}, time.Minute, 50*time.Millisecond)
}

// A process may listen on either address of localhost.
func TestExecutor_DialsBothAddressesOfLocalhost(t *testing.T) {
	for _, host := range []string{"127.0.0.1", "::1"} {
		l, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
		if err != nil && host == "::1" {
			t.Skipf("requires IPv6: %v", err)
		}
		require.NoError(t, err)
		_, port, err := net.SplitHostPort(l.Addr().String())
		require.NoError(t, err)
		number, err := strconv.ParseInt(port, 10, 32)
		require.NoError(t, err)
		e := New(Config{Root: t.TempDir(), Unprivileged: true})
		conn, err := e.DialPod(t.Context(), nil, int32(number))
		require.NoError(t, err)
		assert.Equal(t, l.Addr().String(), conn.RemoteAddr().String())
		require.NoError(t, conn.Close())
		require.NoError(t, l.Close())
		_, err = e.DialPod(t.Context(), nil, int32(number))
		require.ErrorIs(t, err, syscall.ECONNREFUSED)
	}
}
