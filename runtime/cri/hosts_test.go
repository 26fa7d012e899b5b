//go:build linux

package cri

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	goruntime "runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/runtime"
)

// started applies a pod and returns what its container was made of.
func started(t *testing.T, cfg Config, pod *corev1.Pod, m runtime.RunOptions) *v1.ContainerConfig {
	f := newFake()
	f.addImage(busybox)
	require.Empty(t, f.client(t, cfg).Apply(t.Context(), pod, startAll(pod), m).Failures)
	for _, c := range f.configs {
		return c
	}
	return nil
}

func mountAt(cfg *v1.ContainerConfig, path string) string {
	for _, m := range cfg.GetMounts() {
		if m.GetContainerPath() == path {
			return m.GetHostPath()
		}
	}
	return ""
}

// RT-11: the hosts file.
func TestHostsFile(t *testing.T) {
	pod := onePod("main")
	pod.Spec.HostAliases = []corev1.HostAlias{{IP: "192.0.2.9", Hostnames: []string{"db", "db.local"}}}
	m := runtime.RunOptions{Dir: t.TempDir(), Hostname: "web", ClusterDomain: "shop.local"}
	file := mountAt(started(t, Config{}, pod, m), "/etc/hosts")
	require.Equal(t, filepath.Join(m.Dir, "etc-hosts"), file)
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	assert.Equal(t, "# Kubernetes-managed hosts file.\n127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n"+
		"fe00::0\tip6-localnet\nfe00::0\tip6-mcastprefix\nfe00::1\tip6-allnodes\nfe00::2\tip6-allrouters\n"+
		"10.0.0.7\tweb.shop.local\tweb\n\n# Entries added by HostAliases.\n192.0.2.9\tdb\tdb.local\n", string(text))

	// On the node's network the node's file, and aliases.
	node := filepath.Join(t.TempDir(), "hosts")
	require.NoError(t, os.WriteFile(node, []byte("192.0.2.1\tedge-1\n"), 0o600))
	pod.Spec.HostNetwork = true
	m.Dir = t.TempDir()
	text, err = os.ReadFile(mountAt(started(t, Config{Node: Node{HostsFile: node}}, pod, m), "/etc/hosts"))
	require.NoError(t, err)
	assert.Equal(t, "# Kubernetes-managed hosts file (host network).\n192.0.2.1\tedge-1\n\n# Entries added by HostAliases.\n192.0.2.9\tdb\tdb.local\n", string(text))

	// A container that brings its own keeps it.
	pod.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "own", MountPath: "/etc/hosts"}}
	m.Volumes = map[string]runtime.Volume{"own": {HostPath: "/own"}}
	assert.Equal(t, "/own", mountAt(started(t, Config{}, pod, m), "/etc/hosts"))
}

// hostsTurn is one that writes the hosts file of a pod with the address 10.0.0.1.
func newHostsRun(m runtime.RunOptions) *applyRun {
	return &applyRun{c: &Client{}, pod: onePod("main"), m: m, sandbox: runtime.Sandbox{IPs: []string{"10.0.0.1"}}}
}

// sparse makes a file as long as a file can be that takes no room.
func sparse(t *testing.T, path string) {
	t.Helper()
	f, err := os.Create(path)
	require.NoError(t, err)
	defer func() { _ = f.Close() }()
	for size := int64(8 << 40); f.Truncate(size) != nil; size /= 2 {
		require.Greater(t, size, int64(1<<30), "no sparse files here")
	}
}

// OW-3: whatever a container made of its hosts file, the next one gets what it should
// be, and the agent reads no more than that.
func TestHostsFile_WrittenByAContainer(t *testing.T) {
	write := func(text string) func(*testing.T, string) {
		return func(t *testing.T, path string) { require.NoError(t, os.WriteFile(path, []byte(text), 0o600)) }
	}
	for name, spoil := range map[string]func(t *testing.T, path string){
		"sparse":  sparse,
		"longer":  func(t *testing.T, path string) { write(strings.Repeat("10.9.9.9 x\n", 1000))(t, path) },
		"shorter": write("x"),
		"empty":   write(""),
		"a link": func(t *testing.T, path string) {
			require.NoError(t, errors.Join(os.Remove(path), os.Symlink(t.TempDir()+"/elsewhere", path)))
		},
		"a pipe": func(t *testing.T, path string) {
			require.NoError(t, errors.Join(os.Remove(path), unix.Mkfifo(path, 0o600)))
		},
		"leased": func(t *testing.T, path string) {
			write("x")(t, path)
			f, err := os.OpenFile(path, os.O_RDWR, 0)
			require.NoError(t, err)
			t.Cleanup(func() { _ = f.Close() })
			if _, err := unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_WRLCK); err != nil {
				t.Skip("no leases here:", err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			tn := newHostsRun(runtime.RunOptions{Dir: t.TempDir(), Hostname: "web"})
			mount, err := tn.hostsMount(&corev1.Container{})
			require.NoError(t, err)
			want, err := os.ReadFile(mount.GetHostPath())
			require.NoError(t, err)
			spoil(t, mount.GetHostPath())

			var before, after goruntime.MemStats
			goruntime.ReadMemStats(&before)
			_, err = tn.hostsMount(&corev1.Container{})
			require.NoError(t, err)
			goruntime.ReadMemStats(&after)
			assert.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(1<<20))
			info, err := os.Lstat(mount.GetHostPath())
			require.NoError(t, err)
			assert.Equal(t, os.FileMode(0o644), info.Mode())
			require.Len(t, want, int(info.Size()))
			text, err := os.ReadFile(mount.GetHostPath())
			require.NoError(t, err)
			assert.Equal(t, string(want), string(text))
		})
	}
}

// Running containers have the file mounted: a change reaches them.
func TestHostsFile_ChangesInPlace(t *testing.T) {
	tn := newHostsRun(runtime.RunOptions{Dir: t.TempDir(), Hostname: "web"})
	mount, err := tn.hostsMount(&corev1.Container{})
	require.NoError(t, err)
	existing, err := os.Open(mount.GetHostPath())
	require.NoError(t, err)
	defer func() { _ = existing.Close() }()
	tn.sandbox.IPs = []string{"10.0.0.2"}
	_, err = tn.hostsMount(&corev1.Container{})
	require.NoError(t, err)
	text, err := io.ReadAll(existing)
	require.NoError(t, err)
	assert.Contains(t, string(text), "10.0.0.2\tweb\n")
}

func TestHostsFile_FullyQualifiedHostname(t *testing.T) {
	text := hostsContent(onePod("main"), "box.sub.ns.svc.cluster.local", "sub.ns.svc.cluster.local", []string{"10.0.0.1"})
	assert.Contains(t, text, "\n10.0.0.1\tbox.sub.ns.svc.cluster.local\tbox\n")
}

// The umask takes nothing away from files that any user of a container uses.
func TestFilesOfContainersUnderAHardUmask(t *testing.T) {
	defer unix.Umask(unix.Umask(0o077))
	m := runtime.RunOptions{Dir: t.TempDir(), Hostname: "web"}
	pod := onePod("main")
	pod.Spec.Containers[0].TerminationMessagePath = "/tmp/words"
	cfg := started(t, Config{}, pod, m)
	for path, want := range map[string]os.FileMode{"/etc/hosts": 0o644, "/tmp/words": 0o666} {
		info, err := os.Stat(mountAt(cfg, path))
		require.NoError(t, err)
		assert.Equal(t, want, info.Mode(), path)
	}
}

// RT-14: any user of the container can write its last words.
func TestMessageFileIsMounted(t *testing.T) {
	pod := onePod("main")
	pod.Spec.Containers[0].TerminationMessagePath = "/tmp/words"
	m := runtime.RunOptions{Dir: t.TempDir()}
	file := mountAt(started(t, Config{}, pod, m), "/tmp/words")
	info, err := os.Stat(file)
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o666), info.Mode().Perm())
	assert.Equal(t, filepath.Join(m.Dir, "containers", "main"), filepath.Dir(file))
}

// No path is made of a name that is none.
func TestContainerNames_StayInPodDirectory(t *testing.T) {
	f := newFake()
	f.addImage(busybox)
	pod := onePod("../../x")
	applied := f.client(t, Config{}).Apply(t.Context(), pod, startAll(pod), runtime.RunOptions{Dir: t.TempDir(), LogDir: t.TempDir()})
	assert.ErrorIs(t, applied.Failures["../../x"].Err, runtime.ErrInvalid)
	assert.Zero(t, f.count("CreateContainer"))
}
