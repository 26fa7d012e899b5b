package cri

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/runtime"
)

// started applies a pod and returns what its container was made of.
func started(t *testing.T, cfg Config, pod *corev1.Pod, m runtime.Materials) *v1.ContainerConfig {
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
	m := runtime.Materials{Dir: t.TempDir(), Hostname: "web", Domain: "shop.local"}
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

// RT-14: any user of the container can write its last words.
func TestMessageFileIsMounted(t *testing.T) {
	pod := onePod("main")
	pod.Spec.Containers[0].TerminationMessagePath = "/tmp/words"
	m := runtime.Materials{Dir: t.TempDir()}
	file := mountAt(started(t, Config{}, pod, m), "/tmp/words")
	info, err := os.Stat(file)
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o666), info.Mode().Perm())
	assert.Equal(t, filepath.Join(m.Dir, "containers", "main"), filepath.Dir(file))
}

// No path is made of a name that is none.
func TestContainerNamesCannotLeaveTheFolder(t *testing.T) {
	f := newFake()
	f.addImage(busybox)
	pod := onePod("../../x")
	applied := f.client(t, Config{}).Apply(t.Context(), pod, startAll(pod), runtime.Materials{Dir: t.TempDir(), LogDir: t.TempDir()})
	assert.ErrorIs(t, applied.Failures["../../x"].Err, runtime.ErrInvalid)
	assert.Zero(t, f.count("CreateContainer"))
}
