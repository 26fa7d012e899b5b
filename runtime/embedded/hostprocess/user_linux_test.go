package hostprocess

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
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

func secured(sc *v1.LinuxContainerSecurityContext) func(*v1.ContainerConfig) {
	return func(c *v1.ContainerConfig) { c.Linux = &v1.LinuxContainerConfig{SecurityContext: sc} }
}

// knownUser is a user of this machine that has neither of root's numbers.
func knownUser(t *testing.T) (uid, gid int64) {
	t.Helper()
	text, err := os.ReadFile("/etc/passwd")
	require.NoError(t, err)
	for line := range strings.Lines(string(text)) {
		f := strings.Split(line, ":")
		if len(f) < 4 {
			continue
		}
		uid, uerr := strconv.ParseInt(f[2], 10, 64)
		gid, gerr := strconv.ParseInt(f[3], 10, 64)
		if uerr == nil && gerr == nil && uid != 0 && gid != 0 && uid != gid {
			return uid, gid
		}
	}
	t.Skip("this machine has no such user")
	return 0, 0
}

func TestExecutor_RunsAsAUserWithItsGroup(t *testing.T) {
	g := rootRig(t)
	uid, gid := knownUser(t)
	tests := map[string]struct {
		sc   *v1.LinuxContainerSecurityContext
		want string
	}{
		"known here":      {&v1.LinuxContainerSecurityContext{RunAsUser: &v1.Int64Value{Value: uid}}, fmt.Sprint(uid, " ", gid)},
		"with a group":    {&v1.LinuxContainerSecurityContext{RunAsUser: &v1.Int64Value{Value: uid}, RunAsGroup: &v1.Int64Value{Value: 77}}, fmt.Sprint(uid, " 77")},
		"not known here":  {&v1.LinuxContainerSecurityContext{RunAsUser: &v1.Int64Value{Value: 54321}}, "54321 0"},
		"nobody's choice": {nil, "0 0"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			id := g.Start(t, g.RunPod(t, embeddedtest.PodConfig(strings.ReplaceAll(name, " ", "-"))), secured(tc.sc), "sleep", "1000")
			assert.Equal(t, tc.want, g.shell(t, id, "echo $(id -u) $(id -g)"))
		})
	}
}

// The kernel says of a program that it may not be run where its user may not enter the working directory.
func TestExecutor_SaysWhichDirectoryAUserMayNotEnter(t *testing.T) {
	rootRig(t)
	private := filepath.Join(t.TempDir(), "agent")
	require.NoError(t, os.Chmod(filepath.Dir(filepath.Dir(private)), 0o755)) //nolint:gosec // so that the next one is the first that is private
	require.NoError(t, os.Mkdir(private, 0o700))
	g := newRig(t, New(Config{Root: filepath.Join(private, "containers")}))
	sb := g.RunPod(t, embeddedtest.PodConfig("p"))
	start := func(name string, sc *v1.LinuxContainerSecurityContext, dir string) error {
		id, err := g.Create(t, sb, func(c *v1.ContainerConfig) {
			c.Metadata.Name, c.WorkingDir = name, dir
			secured(sc)(c)
		}, "sleep", "1000")
		require.NoError(t, err)
		_, err = g.CRI.StartContainer(t.Context(), &v1.StartContainerRequest{ContainerId: id})
		return err
	}
	other := &v1.LinuxContainerSecurityContext{RunAsUser: &v1.Int64Value{Value: 54321}}
	assert.ErrorContains(t, start("other", other, ""), "user 54321 may not enter the directory "+private+", of mode drwx------")
	assert.NoError(t, start("elsewhere", other, "/"))
	assert.NoError(t, start("root", nil, ""))
}

// The user of a container can open its streams by name, as programs do that log to a file.
func TestExecutor_UserOpensItsStreams(t *testing.T) {
	g := rootRig(t)
	cfg, path := embeddedtest.WithLogs(t, embeddedtest.PodConfig("p"))
	user := secured(&v1.LinuxContainerSecurityContext{RunAsUser: &v1.Int64Value{Value: 54321}})
	id := g.Start(t, g.RunPod(t, cfg), user, "sh", "-c", "echo out > /dev/stdout; echo err > /dev/stderr; exec sleep 1000")
	assert.Equal(t, "out\nerr", g.shell(t, id, "echo out > /dev/stdout; echo err > /dev/stderr"))
	for name, tty := range map[string]bool{"pipes": false, "terminal": true} {
		var stdout bytes.Buffer
		stdin, end := io.Pipe()
		code, err := g.ExecStreams(t.Context(), id, embedded.Exec{
			Cmd: []string{"sh", "-c", "true < /dev/stdin && echo out > /dev/stdout"}, IO: embedded.IO{Stdin: stdin, Stdout: &stdout, TTY: tty},
		})
		require.NoError(t, errors.Join(err, end.Close()), name)
		assert.Zero(t, code, name)
		assert.Equal(t, "out", strings.TrimSpace(stdout.String()), name)
	}
	// The two streams are logged side by side, and the container may still be about to write.
	require.Eventually(t, func() bool { return len(embeddedtest.ReadLog(t, path)) >= 2 }, time.Minute, 10*time.Millisecond)
	assert.ElementsMatch(t, []string{"stdout F out", "stderr F err"}, embeddedtest.ReadLog(t, path))
}

func TestExecutor_NoNewPrivileges(t *testing.T) {
	hostRigs(t, func(t *testing.T, g *rig) {
		sb := g.RunPod(t, embeddedtest.PodConfig("p"))
		for n, want := range []string{"0", "1"} {
			id := g.Start(t, sb, func(c *v1.ContainerConfig) {
				c.Metadata.Attempt = uint32(n)
				secured(&v1.LinuxContainerSecurityContext{NoNewPrivs: n == 1})(c)
			}, "sh", "-c", "grep NoNewPrivs /proc/self/status | cut -f2 > no-new-privs; exec sleep 1000")
			assert.Equal(t, want, g.shell(t, id, "grep NoNewPrivs /proc/self/status | cut -f2"), "exec")
			assert.Equal(t, want, g.shell(t, id, "while ! [ -s no-new-privs ]; do sleep 0.01; done; cat no-new-privs"))
		}
	})
}

// The shell that started this process may have left descriptors open.
func TestExecutor_InheritsNoDescriptors(t *testing.T) {
	null, err := os.Open(os.DevNull)
	require.NoError(t, err)
	defer func() { _ = null.Close() }()
	fd, err := syscall.Dup(int(null.Fd())) // not closed by exec
	require.NoError(t, err)
	defer func() { _ = syscall.Close(fd) }()
	hostRigs(t, func(t *testing.T, g *rig) {
		id := g.Start(t, g.RunPod(t, embeddedtest.PodConfig("p")), nil, "sh", "-c", "ls /proc/$$/fd > fds; exec sleep 1000")
		assert.Equal(t, "0 1 2", g.shell(t, id, "while ! [ -s fds ]; do sleep 0.01; done; echo $(sed '/^[0-2]$/!d' fds)"))
		assert.Equal(t, "no", g.shell(t, id, fmt.Sprintf("test -e /proc/self/fd/%d && echo yes || echo no", fd)))
		assert.NotContains(t, strings.Fields(g.shell(t, id, "cat fds")), strconv.Itoa(fd))
	})
}

// Hardened services run with umask 077.
func TestExecutor_HasItsOwnUmask(t *testing.T) {
	defer syscall.Umask(syscall.Umask(0o077))
	t.Run("as somebody else", func(t *testing.T) {
		g := rootRig(t)
		data := volume(t)
		id := g.Start(t, g.RunPod(t, embeddedtest.PodConfig("p")), func(c *v1.ContainerConfig) {
			mounted("/sublet-test-top/in", data, "/dev/sublet-test/in", data)(c)
			secured(&v1.LinuxContainerSecurityContext{RunAsUser: &v1.Int64Value{Value: 54321}})(c)
		}, "sleep", "1000")
		assert.Equal(t, "content", g.shell(t, id, "cat /sublet-test-top/in/f"))
		assert.Equal(t, "content", g.shell(t, id, "cat /dev/sublet-test/in/f"))
		assert.Equal(t, "0022", g.shell(t, id, "umask"))
		assert.Empty(t, g.shell(t, id, "echo x > file"), "it owns its working directory")
	})
	t.Run("in a directory that is made", func(t *testing.T) {
		root := filepath.Join(t.TempDir(), "a", "b")
		g := newRig(t, New(Config{Root: root, Unprivileged: true}))
		id := g.Start(t, g.RunPod(t, embeddedtest.PodConfig("p")), nil, "sleep", "1000")
		assert.Equal(t, "0022", g.shell(t, id, "umask"))
		for _, dir := range []string{filepath.Dir(root), root, filepath.Join(root, "containers"), filepath.Join(root, "containers", id)} {
			st, err := os.Stat(dir)
			require.NoError(t, err)
			assert.Equal(t, os.FileMode(0o711), st.Mode().Perm(), dir)
		}
	})
	assert.Equal(t, 0o077, syscall.Umask(0o077), "the umask of the process")
}

// What a pod asks for to be safer is not dropped.
func TestAnOrdinaryUserCannotSetGroups(t *testing.T) {
	if os.Geteuid() == 0 {
		t.Skip("root can")
	}
	have, err := os.Getgroups()
	require.NoError(t, err)
	ours := int64(os.Getegid())
	none := int64(1 << 30)
	me := &v1.Int64Value{Value: int64(os.Geteuid())}
	tests := map[string]struct {
		sc       *v1.LinuxContainerSecurityContext
		rejected bool
	}{
		"its own":          {&v1.LinuxContainerSecurityContext{SupplementalGroups: []int64{ours}}, false},
		"another":          {&v1.LinuxContainerSecurityContext{SupplementalGroups: []int64{ours, none}}, true},
		"another as first": {&v1.LinuxContainerSecurityContext{RunAsUser: me, RunAsGroup: &v1.Int64Value{Value: none}}, true},
		"its own as first": {&v1.LinuxContainerSecurityContext{RunAsUser: me, RunAsGroup: &v1.Int64Value{Value: ours}}, false},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			g := hostRig(t)
			_, err := g.Create(t, g.RunPod(t, embeddedtest.PodConfig("p")), secured(tc.sc), "true")
			if !tc.rejected {
				assert.NoError(t, err)
				return
			}
			assert.Equal(t, codes.FailedPrecondition, status.Code(err))
			assert.ErrorContains(t, err, fmt.Sprint(none))
			assert.ErrorContains(t, err, fmt.Sprint(have))
		})
	}
}

// Settings that agents make for every pod are ignored without namespaces, and logged.
func TestExecutor_LogsWhatIsUnavailableWithoutNamespaces(t *testing.T) {
	var logged bytes.Buffer
	logger := slog.New(slog.NewTextHandler(&logged, nil))
	g := newRig(t, New(Config{Root: t.TempDir(), Unprivileged: true, Logger: logger}))
	cfg := embeddedtest.PodConfig("p")
	cfg.Hostname = "box"
	id := g.Start(t, g.RunPod(t, cfg), nil, "sleep", "1000")
	assert.Equal(t, "box", g.shell(t, id, "echo $HOSTNAME"))
	assert.Equal(t, 1, strings.Count(logged.String(), "\n"), "once a pod: %s", &logged)
	assert.Contains(t, logged.String(), "resolver")
}
