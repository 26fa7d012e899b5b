package hostprocess

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/runtime/embedded/internal/embeddedtest"
)

// rootRig is a runtime of host processes that have mount namespaces.
func rootRig(t *testing.T) *rig {
	h := New(Config{})
	if !h.isolated() {
		t.Skip("needs root and CAP_SYS_ADMIN for mount namespaces")
	}
	return newRig(t, h)
}

// shell runs a command in a container and returns its output.
func (g *rig) shell(t *testing.T, id, script string) string {
	t.Helper()
	r, err := g.CRI.ExecSync(t.Context(), &v1.ExecSyncRequest{ContainerId: id, Cmd: []string{"sh", "-c", script}, Timeout: 60})
	require.NoError(t, err)
	return strings.TrimSpace(string(r.GetStdout()) + string(r.GetStderr()))
}

func TestExecutor_Mounts(t *testing.T) {
	g := rootRig(t)
	src := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(src, "f"), []byte("content"), 0o644))
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, []byte("a file"), 0o644))
	id := g.Start(t, g.RunPod(t, embeddedtest.PodConfig("p")), func(c *v1.ContainerConfig) {
		c.Mounts = []*v1.Mount{
			{ContainerPath: "/sublet-test-top/deep", HostPath: src},                  // in the root directory
			{ContainerPath: "/sublet-test-top/other", HostPath: src, Readonly: true}, // beside it
			{ContainerPath: "/var/lib/sublet-test-none/x/y", HostPath: src},          // a place deeper down
			{ContainerPath: "/etc/hosts", HostPath: file},                            // over a file
			{ContainerPath: "/dev/termination-log", HostPath: file},                  // a file that is not there
			{ContainerPath: "/var/lib/sublet-test-none/x/y2", HostPath: file},        // in a directory made before
		}
	}, "sh", "-c", "cat /sublet-test-top/deep/f; exec sleep 1000")
	assert.Equal(t, "content", g.shell(t, id, "cat /sublet-test-top/deep/f"))
	assert.Equal(t, "content", g.shell(t, id, "cat /var/lib/sublet-test-none/x/y/f"))
	assert.Equal(t, "a file", g.shell(t, id, "cat /etc/hosts"))
	assert.Equal(t, "a file", g.shell(t, id, "cat /var/lib/sublet-test-none/x/y2"))
	assert.Contains(t, g.shell(t, id, "echo no > /sublet-test-top/other/new"), "Read-only")
	g.shell(t, id, "echo new > /sublet-test-top/deep/new; echo bye > /dev/termination-log")
	assert.Equal(t, "ok", g.shell(t, id, "echo x > /dev/null && head -c1 /dev/zero >/dev/null && ls /usr/bin/env >/dev/null && echo ok"), "the rest of the machine is as ever")

	b, err := os.ReadFile(filepath.Join(src, "new"))
	require.NoError(t, err, "writes reach the volume")
	assert.Equal(t, "new\n", string(b))
	for _, path := range []string{"/sublet-test-top", "/var/lib/sublet-test-none", "/dev/termination-log"} {
		_, err := os.Stat(path)
		assert.True(t, os.IsNotExist(err), "the host got %s", path)
	}
	g.Stop(t, id, 0)
	mounts, err := os.ReadFile("/proc/self/mounts")
	require.NoError(t, err)
	assert.False(t, strings.Contains(string(mounts), "sublet-test"), "a mount leaked to the host")
	_, err = g.CRI.RemoveContainer(t.Context(), &v1.RemoveContainerRequest{ContainerId: id})
	require.NoError(t, err)
	_, err = os.Stat(filepath.Join(src, "f"))
	assert.NoError(t, err, "removing the container removed its volume")
}

func TestExecutor_SetsHostNameAndResolver(t *testing.T) {
	g := rootRig(t)
	before, err := os.Hostname()
	require.NoError(t, err)
	cfg := embeddedtest.PodConfig("p")
	cfg.Hostname = "box"
	cfg.DnsConfig = &v1.DNSConfig{Servers: []string{"10.10.10.10"}, Searches: []string{"a.example"}, Options: []string{"ndots:8"}}
	id := g.Start(t, g.RunPod(t, cfg), nil, "sleep", "1000")
	assert.Equal(t, "box", g.shell(t, id, "hostname"))
	assert.Equal(t, "nameserver 10.10.10.10\nsearch a.example\noptions ndots:8", g.shell(t, id, "cat /etc/resolv.conf"))
	after, err := os.Hostname()
	require.NoError(t, err)
	assert.Equal(t, before, after)
}

func TestExecutor_RunsAsAnotherUser(t *testing.T) {
	g := rootRig(t)
	cfg, path := embeddedtest.WithLogs(t, embeddedtest.PodConfig("p"))
	id := g.Start(t, g.RunPod(t, cfg), func(c *v1.ContainerConfig) {
		c.Linux = &v1.LinuxContainerConfig{SecurityContext: &v1.LinuxContainerSecurityContext{
			RunAsUser: &v1.Int64Value{Value: 1234}, RunAsGroup: &v1.Int64Value{Value: 2345}, SupplementalGroups: []int64{3456},
		}}
	}, "sh", "-c", "echo $(id -u) $(id -g) $(id -G)")
	g.AwaitExit(t, id)
	assert.Equal(t, []string{"stdout F 1234 2345 2345 3456"}, embeddedtest.ReadLog(t, path))
}

func TestExecutor_NamesMissingHostPaths(t *testing.T) {
	g := rootRig(t)
	_, err := g.Create(t, g.RunPod(t, embeddedtest.PodConfig("p")), func(c *v1.ContainerConfig) {
		c.Mounts = []*v1.Mount{{ContainerPath: "/data", HostPath: "/no/such/folder"}}
	}, "true")
	assert.ErrorContains(t, err, `mount "/data"`)
	assert.ErrorContains(t, err, "/no/such/folder")
}
