package hostprocess

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/runtime/embedded/internal/embeddedtest"
)

// hostRigs are runtimes of host processes as an ordinary user has them and, for root,
// with mount namespaces.
func hostRigs(t *testing.T, run func(t *testing.T, g *rig)) {
	t.Run("ordinary", func(t *testing.T) { run(t, hostRig(t)) })
	t.Run("isolated", func(t *testing.T) { run(t, rootRig(t)) })
}

// requireExit asserts that a process exits.
func requireExit(t *testing.T, pid int) {
	t.Helper()
	assert.Eventually(t, func() bool { return !alive(pid) }, time.Minute, time.Millisecond, "process %d outlives its container", pid)
}

// A process gives up what it can, and its container ends.
func TestExecutor_LeavesNoProcessBehind(t *testing.T) {
	sheds := map[string]string{ // each writes its process's number to a file
		"of its group":              "sh -c 'echo $$ > %[1]s; exec sleep 1000' & ",
		"in a session of its own":   "setsid sh -c 'echo $$ > %[1]s; exec sleep 1000' & ",
		"without an environment":    "env -i sh -c 'echo $$ > %[1]s; exec sleep 1000' & ",
		"with neither":              "setsid env -i /bin/sh -c 'echo $$ > %[1]s; exec sleep 1000' & ",
		"with neither, and forked":  "(setsid env -i /bin/sh -c '(echo $$ > /dev/null; setsid sh -c \"echo \\$\\$ > %[1]s; exec sleep 1000\" &)' &) ; ",
		"that ignores what it gets": "setsid env -i /bin/sh -c 'trap \"\" TERM HUP INT; echo $$ > %[1]s; while :; do sleep 0.01; done' & ",
	}
	ends := map[string]struct {
		tail string
		end  func(t *testing.T, g *rig, sandbox, id, file string)
	}{
		"by itself": {"while ! [ -s %[1]s ]; do sleep 0.01; done; exit 3", func(t *testing.T, g *rig, _, id, _ string) { g.AwaitExit(t, id) }},
		"stopped":   {"sleep 1000", func(t *testing.T, g *rig, _, id, _ string) { g.Stop(t, id, 0) }},
		"removed with its pod": {"sleep 1000", func(t *testing.T, g *rig, sandbox, _, _ string) {
			_, err := g.CRI.RemovePodSandbox(t.Context(), &v1.RemovePodSandboxRequest{PodSandboxId: sandbox})
			require.NoError(t, err)
		}},
	}
	for how, shed := range sheds {
		for when, end := range ends {
			t.Run(how+" "+when, func(t *testing.T) {
				t.Parallel()
				hostRigs(t, func(t *testing.T, g *rig) {
					file := filepath.Join(t.TempDir(), "pid")
					sandbox := g.RunPod(t, embeddedtest.PodConfig("p"))
					id := g.Start(t, sandbox, nil, "sh", "-c", fmt.Sprintf(shed+end.tail, file))
					pid := pidIn(t, file)
					end.end(t, g, sandbox, id, file)
					requireExit(t, pid)
				})
			})
		}
	}
}

func TestExecutor_KillsBackgroundProcessesOfExec(t *testing.T) {
	hostRigs(t, func(t *testing.T, g *rig) {
		file := filepath.Join(t.TempDir(), "pid")
		id := g.Start(t, g.RunPod(t, embeddedtest.PodConfig("p")), nil, "sleep", "1000")
		_, err := g.CRI.ExecSync(t.Context(), &v1.ExecSyncRequest{ContainerId: id, Cmd: []string{
			"sh", "-c", "setsid env -i /bin/sh -c 'echo $$ > " + file + "; exec sleep 1000' >/dev/null 2>&1 &",
		}})
		require.NoError(t, err)
		pid := pidIn(t, file)
		assert.True(t, alive(pid), "what a command leaves in the background lives on in its container")
		g.Stop(t, id, 0)
		requireExit(t, pid)
	})
}

func TestExecutor_MeasuresDetachedProcesses(t *testing.T) {
	g := hostRig(t)
	file := filepath.Join(t.TempDir(), "pid")
	sandbox := g.RunPod(t, embeddedtest.PodConfig("p"))
	g.Start(t, sandbox, nil, "sh", "-c", "setsid env -i /bin/sh -c 'echo $$ > "+file+"; exec sleep 1000' & exec sleep 1000")
	pidIn(t, file)
	require.Eventually(t, func() bool {
		r, err := g.CRI.PodSandboxStats(t.Context(), &v1.PodSandboxStatsRequest{PodSandboxId: sandbox})
		require.NoError(t, err)
		return r.GetStats().GetLinux().GetProcess().GetProcessCount().GetValue() == 2
	}, time.Minute, 10*time.Millisecond)
}

// A process that only resembles one of the container's is not killed.
func TestExecutor_LeavesOtherProcessesAlone(t *testing.T) {
	g := hostRig(t)
	id := g.Start(t, g.RunPod(t, embeddedtest.PodConfig("p")), nil, "sleep", "1000")
	stranger := exec.Command("sleep", "1000")
	stranger.Env = []string{EnvContainerID + "=" + strings.Repeat("ab", 32)}
	require.NoError(t, stranger.Start())
	defer func() { _, _ = stranger.Process.Kill(), stranger.Wait() }()
	g.Stop(t, id, 0)
	assert.True(t, alive(stranger.Process.Pid))
}

func TestReadProcess_IdentifiesProcesses(t *testing.T) {
	me, ok := readProcess(os.Getpid())
	require.True(t, ok)
	assert.True(t, me.exists())
	me.start++
	assert.False(t, me.exists(), "another process had this number")
	assert.Zero(t, tagOf(os.Getpid()))
	_, ok = readProcess(1 << 30)
	assert.False(t, ok)
}

func TestParseStat(t *testing.T) {
	const rest = " 5 6 7 0 -1 0 1 2 3 4 10 20 30 40 20 0 %d 0 999 0 3"
	tests := map[string]struct {
		text string
		ok   bool
	}{
		"a process":                   {"12 (sh) S" + fmt.Sprintf(rest, 1), true},
		"a name that looks like more": {"12 (a) Z 1 (b) S" + fmt.Sprintf(rest, 1), true},
		"a zombie":                    {"12 (sh) Z" + fmt.Sprintf(rest, 1), false},
		"a first thread that ended":   {"12 (sh) Z" + fmt.Sprintf(rest, 2), true},
		"torn":                        {"12 (sh) S 5", false},
		"nothing":                     {"", false},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			p, ok := parseStat(12, []byte(tc.text))
			require.Equal(t, tc.ok, ok)
			assert.Equal(t, strings.HasPrefix(tc.text, "12 (sh) Z") || ok, p.pid == 12, "what is no process")
			if ok {
				want := process{pid: 12, parent: 5, session: 7, start: 999, cpu: time.Second, rss: 3 * uint64(os.Getpagesize())}
				assert.Equal(t, want, p)
			}
		})
	}
}

// A traced program would not get what its bits say.
func TestExecutor_DoesNotTracePrivilegedPrograms(t *testing.T) {
	dir := t.TempDir()
	for name, mode := range map[string]os.FileMode{"plain": 0o755, "user": 0o755 | os.ModeSetuid, "group": 0o755 | os.ModeSetgid} {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, nil, 0o600))
		require.NoError(t, os.Chmod(path, mode))
		assert.Equal(t, name != "plain", privileged(path), name)
	}
	assert.True(t, privileged(filepath.Join(dir, "none")))
}

// A program that is not traced may start others before it is tagged. They are found by their environment.
func TestExecutor_FindsWhatAnUntracedProgramStarted(t *testing.T) {
	h := New(Config{Root: t.TempDir(), Unprivileged: true})
	g := newRig(t, h)
	script := filepath.Join(t.TempDir(), "script") // of which the kernel ignores the bit
	require.NoError(t, os.WriteFile(script, []byte("#!/bin/sh\nexec sleep 1000\n"), 0o600))
	for mode, isUntraced := range map[os.FileMode]bool{0o755: false, 0o755 | os.ModeSetuid: true} {
		require.NoError(t, os.Chmod(script, mode))
		id := g.Start(t, g.RunPod(t, embeddedtest.PodConfig(mode.String())), nil, script)
		h.reaper.mu.Lock()
		for _, p := range h.reaper.running {
			assert.Equal(t, isUntraced, p.hasUntagged.Load(), mode)
			assert.NotZero(t, tagOf(p.pid))
		}
		h.reaper.mu.Unlock()
		g.Stop(t, id, 0)
	}
}

// Any process chooses its name and its environment.
func FuzzParseStat(f *testing.F) {
	f.Add([]byte("12 (a) b) S 1 12 12 0 -1 0 0 0 0 0 1 2 3 4 20 0 1 0 100 4096 10 0"))
	f.Add([]byte("12 (a) S"))
	f.Fuzz(func(t *testing.T, text []byte) {
		if p, ok := parseStat(12, text); ok {
			require.Equal(t, 12, p.pid)
		}
	})
}

func FuzzContainerIn(f *testing.F) {
	f.Add("PATH=/bin\x00", "abc", "\x00X=1")
	f.Add("X", "", "")
	f.Fuzz(func(t *testing.T, before, id, after string) {
		containerIn(strings.NewReader(before + id + after))
		if strings.Contains(before, EnvContainerID) || strings.Contains(id, "\x00") || len(before)+len(id) > 1<<10 {
			return
		}
		got := containerIn(strings.NewReader(before + "\x00" + EnvContainerID + "=" + id + "\x00" + after))
		require.Equal(t, id, got)
	})
}

// A process exits while processes are listed, and leaves another one behind.
func TestEachNew_FindsWhatAnotherHasStarted(t *testing.T) {
	running := []int{1, 2}
	var found []int
	eachNew(func() []int { return slices.Clone(running) }, func(pid int) {
		found = append(found, pid)
		if pid == 2 {
			running = []int{1, 4}
		}
	})
	assert.Equal(t, []int{1, 2, 4}, found)
	last := 0
	eachNew(func() []int { last++; return []int{last} }, func(int) {})
	assert.Equal(t, maxRounds, last, "new ones without end")
}

// This process is process 1 for its containers, and their processes are no zombies in the end.
func TestExecutor_ReapsWhatOutlivesItsParent(t *testing.T) {
	require.NoError(t, unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0))
	t.Cleanup(func() { _ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0) })
	g := hostRig(t)
	left, running := filepath.Join(t.TempDir(), "left"), filepath.Join(t.TempDir(), "running")
	id := g.Start(t, g.RunPod(t, embeddedtest.PodConfig("p")), nil, "sh", "-c", "(setsid sh -c 'echo $$ > "+left+"; exec sleep 1000' &); exec sleep 1000")
	pid := pidIn(t, left)
	code := make(chan int32, 1)
	go func() {
		r, err := g.CRI.ExecSync(t.Context(), &v1.ExecSyncRequest{ContainerId: id, Cmd: []string{"sh", "-c", "echo $$ > " + running + "; exec sleep 1000"}})
		assert.NoError(t, err)
		code <- r.GetExitCode()
	}()
	pidIn(t, running)
	g.Stop(t, id, 0)
	assert.Equal(t, int32(137), g.Inspect(t, id).GetExitCode())
	assert.Equal(t, int32(137), <-code, "of a command that others wait for")
	assert.NoDirExists(t, fmt.Sprintf("/proc/%d", pid))
}

// A container that runs for long may start any number of daemons meanwhile.
func TestExecutor_ReapsWhileTheContainerRuns(t *testing.T) {
	require.NoError(t, unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0))
	t.Cleanup(func() { _ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0) })
	h := New(Config{Root: t.TempDir(), Unprivileged: true})
	h.reaper.period = time.Millisecond
	g := newRig(t, h)
	sb := g.RunPod(t, embeddedtest.PodConfig("p"))
	left := filepath.Join(t.TempDir(), "left")
	id := g.Start(t, sb, nil, "sh", "-c", "(setsid sh -c 'echo $$ > "+left+"' &); exec sleep 1000")
	pid := pidIn(t, left)
	require.Eventually(t, func() bool {
		_, err := os.Stat(fmt.Sprintf("/proc/%d", pid))
		return os.IsNotExist(err)
	}, time.Minute, time.Millisecond)
	// Others wait for commands and for the containers themselves.
	for code := range 50 {
		r, err := g.CRI.ExecSync(t.Context(), &v1.ExecSyncRequest{ContainerId: id, Cmd: []string{"sh", "-c", fmt.Sprintf("exit %d", code)}})
		require.NoError(t, err)
		require.Equal(t, int32(code), r.GetExitCode())
		other := g.Start(t, sb, func(c *v1.ContainerConfig) { c.Metadata.Attempt = uint32(code) + 1 }, "sh", "-c", fmt.Sprintf("exit %d", code))
		require.Equal(t, int32(code), g.AwaitExit(t, other).GetExitCode())
	}
	assert.Equal(t, v1.ContainerState_CONTAINER_RUNNING, g.Inspect(t, id).GetState())
}
