package hostprocess

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/internal/systest"
	"github.com/sublet-dev/agent/runtime/embedded"
	"github.com/sublet-dev/agent/runtime/embedded/internal/embeddedtest"
)

// volume is a directory with a file f in it, which anybody may read.
func volume(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, os.Chmod(dir, 0o755))
	file := filepath.Join(dir, "f")
	require.NoError(t, os.WriteFile(file, []byte("content"), 0o600))
	require.NoError(t, os.Chmod(file, 0o644)) // whatever the umask
	return dir
}

func mounted(pairs ...string) func(*v1.ContainerConfig) {
	return func(c *v1.ContainerConfig) {
		for i := 0; i < len(pairs); i += 2 {
			c.Mounts = append(c.Mounts, &v1.Mount{ContainerPath: pairs[i], HostPath: pairs[i+1]})
		}
	}
}

// Agents mount the file of the termination message into /dev, where its place does not exist.
func TestExecutor_MakesTerminalsBesideAMount(t *testing.T) {
	g := rootRig(t)
	file := filepath.Join(volume(t), "f")
	for user, sc := range map[string]*v1.LinuxContainerSecurityContext{"root": nil, "another": {RunAsUser: &v1.Int64Value{Value: 54321}}} {
		cfg, log := embeddedtest.WithLogs(t, embeddedtest.PodConfig(user))
		id := g.Start(t, g.RunPod(t, cfg), func(c *v1.ContainerConfig) {
			mounted("/dev/termination-log", file)(c)
			secured(sc)(c)
			c.Tty = true
		}, "sh", "-c", "tty; exec sleep 1000")
		require.Eventually(t, func() bool { return len(embeddedtest.ReadLog(t, log)) > 0 }, time.Minute, 10*time.Millisecond)
		assert.Contains(t, embeddedtest.ReadLog(t, log)[0], "/dev/pts/", user)
		var stdout bytes.Buffer
		_, err := g.ExecStreams(t.Context(), id, embedded.Exec{Cmd: []string{"tty"}, IO: embedded.IO{Stdout: &stdout, TTY: true}})
		require.NoError(t, err, user)
		assert.Contains(t, stdout.String(), "/dev/pts/", user)
		want, err := exec.Command("stat", "-c", "%A %u %g %t:%T", "/dev/ptmx").Output()
		require.NoError(t, err)
		assert.Equal(t, string(want)+"made", g.shell(t, id, "stat -c '%A %u %g %t:%T' /dev/ptmx && true < /dev/ptmx && echo made"), "%s: a terminal of a program", user)
	}
}

func TestExecutor_MountsVolumesAtTheirPaths(t *testing.T) {
	t.Setenv("TMPDIR", "/tmp") // the scratch directories lie there
	src := volume(t)
	tests := map[string][]string{
		"over a directory that others live in":   {"/tmp"},
		"in a directory that others live in":     {"/tmp/sublet-test-cache"},
		"deeper in one":                          {"/tmp/sublet-test-x/y"},
		"beside where it lies itself":            {"/var/lib/sublet-test-other"},
		"at the top":                             {"/sublet-test-top"},
		"behind a link":                          {"/var/run/sublet-test"},
		"behind a link, and at the top":          {"/sublet-test-top", "/var/run/sublet-test"},
		"behind a link of the root directory":    {"/sublet-test-top", "/bin/sublet-test"},
		"in another volume":                      {"/sublet-test-top", "/sublet-test-top/f2/in"},
		"in another volume that comes after it":  {"/sublet-test-top/f3", "/sublet-test-top"},
		"in proc's and dev's neighbourhood":      {"/dev/sublet-test", "/run/secrets/x/y/z"},
		"over and in the directory of the agent": {"/tmp", "/tmp/sublet-test-in"},
	}
	for name, at := range tests {
		t.Run(name, func(t *testing.T) {
			h := New(Config{})
			if !h.isolated() {
				t.Skip("needs root and mount namespaces")
			}
			g := newRig(t, h)
			var pairs []string
			for _, path := range at {
				pairs = append(pairs, path, volume(t))
			}
			id := g.Start(t, g.RunPod(t, embeddedtest.PodConfig("p")), mounted(pairs...), "sh", "-c", "sleep 1000")
			for i, path := range at {
				assert.Equal(t, "content", g.shell(t, id, "cat "+path+"/f"), path)
				g.shell(t, id, "echo new > "+path+"/new")
				assert.FileExists(t, filepath.Join(pairs[2*i+1], "new"), "what is written to %s is lost", path)
			}
			for _, path := range at {
				if path != "/tmp" {
					assert.NoDirExists(t, path, "on the host")
				}
			}
		})
	}
	assert.FileExists(t, filepath.Join(src, "f"))
}

// An init container has copied a program into a volume.
// A file system that does not answer holds up no container that does not use it.
func TestExecutor_MountsVolumesBesideAMountThatHangs(t *testing.T) {
	g, src, parent := rootRig(t), volume(t), t.TempDir()
	hung := filepath.Join(parent, "hung")
	require.NoError(t, os.Mkdir(hung, 0o755))
	remove := systest.MountHung(t, hung)
	defer time.AfterFunc(30*time.Second, remove).Stop() // ends what waits for it
	at := filepath.Join(parent, "new")
	id := g.Start(t, g.RunPod(t, embeddedtest.PodConfig("web")), mounted(at, src), "sleep", "1000")
	assert.Equal(t, "content", g.shell(t, id, "cat "+at+"/f"))
	remove()
	require.NoError(t, os.Remove(hung))
}

func TestExecutor_RunsProgramsOfVolumes(t *testing.T) {
	tests := map[string]struct {
		cmd  []string
		dir  string
		path string
	}{
		"by its path":        {cmd: []string{"/sublet-test-app/prog"}},
		"by PATH":            {cmd: []string{"prog"}, path: "/sublet-test-app:/bin:/usr/bin"},
		"from its directory": {cmd: []string{"./prog"}, dir: "/sublet-test-app"},
		"directory only":     {cmd: []string{"sleep", "1000"}, dir: "/sublet-test-app"},
	}
	src := volume(t)
	require.NoError(t, os.WriteFile(filepath.Join(src, "prog"), []byte("#!/bin/sh\nexec sleep 1000\n"), 0o600))
	require.NoError(t, os.Chmod(filepath.Join(src, "prog"), 0o755))
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			g := rootRig(t)
			id := g.Start(t, g.RunPod(t, embeddedtest.PodConfig("p")), func(c *v1.ContainerConfig) {
				mounted("/sublet-test-app", src)(c)
				c.WorkingDir = tc.dir
				if tc.path != "" {
					c.Envs = []*v1.KeyValue{{Key: "PATH", Value: []byte(tc.path)}}
				}
			}, tc.cmd...)
			if tc.dir != "" {
				assert.Equal(t, tc.dir, g.shell(t, id, "pwd"))
			}
			_, err := g.CRI.ExecSync(t.Context(), &v1.ExecSyncRequest{ContainerId: id, Cmd: []string{"/sublet-test-app/prog"}, Timeout: 1})
			assert.ErrorContains(t, err, "timed out", "exec finds it too")
		})
	}
}

func TestExecutor_NamesMissingWorkingDirectories(t *testing.T) {
	hostRigs(t, func(t *testing.T, g *rig) {
		id, err := g.Create(t, g.RunPod(t, embeddedtest.PodConfig("p")), func(c *v1.ContainerConfig) { c.WorkingDir = "/no/such/directory" }, "sleep", "1000")
		require.NoError(t, err)
		_, err = g.CRI.StartContainer(t.Context(), &v1.StartContainerRequest{ContainerId: id})
		assert.ErrorContains(t, err, "working directory")
		assert.ErrorContains(t, err, "/no/such/directory")
	})
}

// A container that has its way with "/" does not have it with the host's.
func TestExecutor_HasAPrivateRoot(t *testing.T) {
	g := rootRig(t)
	before, err := os.Stat("/")
	require.NoError(t, err)
	id := g.Start(t, g.RunPod(t, embeddedtest.PodConfig("p")), nil, "sleep", "1000")
	mode := g.shell(t, id, "stat -c %a /")
	g.shell(t, id, "chmod 400 /; chown 1:1 /; touch /sublet-test-new")
	assert.Equal(t, "400", g.shell(t, id, "stat -c %a /"))
	after, err := os.Stat("/")
	require.NoError(t, err)
	assert.Equal(t, before.Mode(), after.Mode())
	assert.Equal(t, before.Sys().(*syscall.Stat_t).Uid, after.Sys().(*syscall.Stat_t).Uid)
	assert.NoFileExists(t, "/sublet-test-new")

	next := g.Start(t, g.RunPod(t, embeddedtest.PodConfig("q")), nil, "sleep", "1000")
	assert.Equal(t, mode, g.shell(t, next, "stat -c %a /"), "and it is another's own there")
	if exec.Command("unshare", "-U", "true").Run() == nil {
		assert.Empty(t, g.shell(t, next, "unshare -U true"), "in a mere chroot this is not permitted")
	}
	assert.NotContains(t, g.shell(t, next, "cat /proc/self/mountinfo"), "sublet-host-")
}

func TestExecutor_ReadOnlyRoot(t *testing.T) {
	g := rootRig(t)
	src := volume(t)
	id := g.Start(t, g.RunPod(t, embeddedtest.PodConfig("p")), func(c *v1.ContainerConfig) {
		mounted("/sublet-test-data", src)(c)
		c.Linux = &v1.LinuxContainerConfig{SecurityContext: &v1.LinuxContainerSecurityContext{ReadonlyRootfs: true}}
	}, "sleep", "1000")
	for _, dir := range []string{"/", "/tmp", "/var/tmp", "/etc", "/usr"} {
		assert.Contains(t, g.shell(t, id, "touch "+dir+"/sublet-test-new 2>&1"), "Read-only", dir)
	}
	assert.Empty(t, g.shell(t, id, "touch /sublet-test-data/new; echo x > /dev/null; touch /dev/shm/sublet-test && rm /dev/shm/sublet-test"))
	assert.FileExists(t, filepath.Join(src, "new"))
}

func TestExecutor_RejectsReadOnlyRootWithoutNamespaces(t *testing.T) {
	g := hostRig(t)
	_, err := g.Create(t, g.RunPod(t, embeddedtest.PodConfig("p")), func(c *v1.ContainerConfig) {
		c.Linux = &v1.LinuxContainerConfig{SecurityContext: &v1.LinuxContainerSecurityContext{ReadonlyRootfs: true}}
	}, "true")
	assert.ErrorContains(t, err, "readOnlyRootFilesystem")
}

// What an earlier container left in a volume leads to the container's files, and what
// is made there is seen by it alone.
func TestExecutor_FollowsNoLinksOfVolumes(t *testing.T) {
	g := rootRig(t)
	data, inner := volume(t), volume(t)
	require.NoError(t, os.Symlink("/etc", filepath.Join(data, "link")))
	id := g.Start(t, g.RunPod(t, embeddedtest.PodConfig("p")), mounted("/sublet-test-data", data, "/sublet-test-data/link/sublet-test-new", inner), "sleep", "1000")
	assert.Equal(t, "content", g.shell(t, id, "cat /etc/sublet-test-new/f"))
	assert.NoDirExists(t, "/etc/sublet-test-new")

	require.NoError(t, os.Symlink("/nowhere", filepath.Join(data, "dangling")))
	id, err := g.Create(t, g.RunPod(t, embeddedtest.PodConfig("q")), mounted("/sublet-test-data", data, "/sublet-test-data/dangling", inner), "sleep", "1000")
	require.NoError(t, err)
	_, err = g.CRI.StartContainer(t.Context(), &v1.StartContainerRequest{ContainerId: id})
	assert.ErrorContains(t, err, "/sublet-test-data/dangling")
	assert.NoDirExists(t, "/nowhere")
}

// The options of a mount come on top of those that its file system has.
func TestExecutor_AddsMountOptions(t *testing.T) {
	g := rootRig(t)
	dir := volume(t)
	require.NoError(t, unix.Mount("test", dir, "tmpfs", unix.MS_NOSUID, ""))
	t.Cleanup(func() { assert.NoError(t, unix.Unmount(dir, unix.MNT_DETACH)) })
	id := g.Start(t, g.RunPod(t, embeddedtest.PodConfig("p")), func(c *v1.ContainerConfig) {
		c.Mounts = []*v1.Mount{{ContainerPath: "/sublet-test-data", HostPath: dir, Readonly: true, MountOptions: []string{"noexec"}}}
	}, "sleep", "1000")
	line := g.shell(t, id, "grep ' /sublet-test-data ' /proc/self/mountinfo")
	for _, want := range []string{"ro", "nosuid", "noexec"} {
		assert.Contains(t, strings.Split(strings.Fields(line)[5], ","), want)
	}
}
