//go:build linux

package volume

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/internal/mounts"
	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/runtime"
)

func TestUnmount_RemovesAllAndFollowsNoLinks(t *testing.T) {
	outside := t.TempDir()
	require.NoError(t, os.WriteFile(outside+"/precious", nil, 0o644))
	s := &store{}
	s.put(podspec.ConfigMap, "c", map[string]string{"k": "1"})
	m := manager(t, nil)
	p := pod(t, "u", "  - {name: v}\n  - {name: c, configMap: {name: c}}\n")
	v := mount(t, m, p, s)["v"].HostPath
	require.NoError(t, os.Symlink(outside, v+"/link"))
	require.NoError(t, os.Symlink("/", v+"/root"))
	require.NoError(t, os.MkdirAll(v+"/"+strings.Repeat("d/", 100), 0o755))
	require.NoError(t, os.Link(outside+"/precious", v+"/hard"))
	require.NoError(t, unix.Mkfifo(v+"/fifo", 0o600))
	require.NoError(t, os.Mkdir(v+"/closed", 0o755))
	require.NoError(t, os.WriteFile(v+"/closed/x", nil, 0o600))
	require.NoError(t, os.Chmod(v+"/closed", 0))

	restarted, err := New(m.cfg) // as after a crash
	require.NoError(t, err)
	assert.Equal(t, []types.UID{"u"}, restarted.PodUIDs())
	require.NoError(t, restarted.Unmount(t.Context(), "u"))
	assert.NoDirExists(t, filepath.Join(m.cfg.Root, "pods/u"))
	assert.FileExists(t, outside+"/precious")
	assert.Empty(t, restarted.PodUIDs())
	require.NoError(t, restarted.Unmount(t.Context(), "u"), "once more")
	require.NoError(t, restarted.Unmount(t.Context(), "never-seen"))
}

func TestUnmount_LeavesForeignFiles(t *testing.T) {
	m := manager(t, nil)
	mount(t, m, pod(t, "u", "  - {name: v}\n"), nil)
	theirs := filepath.Join(m.cfg.Root, "pods/u/containers")
	require.NoError(t, os.Mkdir(theirs, 0o755))
	require.NoError(t, m.Unmount(t.Context(), "u"))
	assert.DirExists(t, theirs)
	assert.Empty(t, m.PodUIDs())
}

func TestMount_Memory(t *testing.T) {
	m := privileged(t)
	s := &store{}
	s.put(podspec.Secret, "s", map[string]string{"k": "1"})
	p := pod(t, "u", `
  - {name: small, emptyDir: {medium: Memory, sizeLimit: 1Mi}}
  - {name: limit, emptyDir: {medium: Memory, sizeLimit: 1Gi}}
  - {name: secret, secret: {secretName: s}}
  - {name: both, projected: {sources: [{secret: {name: s}}]}}
  securityContext: {fsGroup: 77}
`)
	v := mount(t, m, p, s)
	for name, size := range map[string]uint64{"small": 1 << 20, "limit": 64 << 20, "secret": 0, "both": 0} {
		var st unix.Statfs_t
		require.NoError(t, unix.Statfs(v[name].HostPath, &st))
		assert.Equal(t, int64(unix.TMPFS_MAGIC), st.Type, name)
		if size > 0 {
			assert.Equal(t, size, st.Blocks*uint64(st.Bsize), name)
		}
		const flags = unix.ST_NOSUID | unix.ST_NODEV
		isPlain := st.Flags&flags == flags
		assert.Equal(t, size == 0, isPlain, "%s: programs and devices of containers work, as with a kubelet", name)
	}
	var st unix.Stat_t
	require.NoError(t, unix.Stat(v["small"].HostPath, &st))
	assert.Equal(t, uint32(0o3777), st.Mode&0o7777)
	assert.Equal(t, uint32(77), st.Gid)
	mount(t, m, p, s)
	table, err := mounts.Below(m.cfg.Root)
	require.NoError(t, err)
	assert.Len(t, table, 4, "mounted once each: %v", table)

	restarted, err := New(m.cfg) // as after a crash
	require.NoError(t, err)
	require.NoError(t, restarted.Unmount(t.Context(), "u"))
	table, err = mounts.Below(m.cfg.Root)
	require.NoError(t, err)
	assert.Empty(t, table)
	assert.NoDirExists(t, filepath.Join(m.cfg.Root, "pods/u"))
}

// A mount in the directory of the pod that this package did not make stays, with its
// content, and is named in the error.
func TestUnmount_LeavesForeignMounts(t *testing.T) {
	m := privileged(t)
	outside := t.TempDir()
	require.NoError(t, os.WriteFile(outside+"/precious", nil, 0o644))
	p := pod(t, "u", "  - {name: v}\n  - {name: w}\n  - {name: m, emptyDir: {medium: Memory}}\n")
	v := mount(t, m, p, nil)
	for _, at := range []string{v["v"].HostPath + "/deep/mount", v["m"].HostPath + "/in"} {
		require.NoError(t, os.MkdirAll(at, 0o755))
		require.NoError(t, unix.Mount(outside, at, "", unix.MS_BIND, ""))
		t.Cleanup(func() { _ = unix.Unmount(at, unix.MNT_DETACH) })
	}
	require.NoError(t, os.WriteFile(v["v"].HostPath+"/mine", nil, 0o644))
	err := m.Unmount(t.Context(), "u")
	assert.Error(t, err, "its own memory is in use by the foreign mount")
	assert.FileExists(t, outside+"/precious")
	require.NoError(t, unix.Unmount(v["m"].HostPath+"/in", 0))

	err = m.Unmount(t.Context(), "u")
	assert.ErrorIs(t, err, ErrForeignMount)
	assert.ErrorContains(t, err, "deep/mount")
	assert.FileExists(t, outside+"/precious")
	assert.NoFileExists(t, v["v"].HostPath+"/mine")
	assert.NoDirExists(t, v["w"].HostPath)

	require.NoError(t, unix.Unmount(v["v"].HostPath+"/deep/mount", 0))
	require.NoError(t, m.Unmount(t.Context(), "u"))
	assert.NoDirExists(t, filepath.Join(m.cfg.Root, "pods/u"))
}

func TestUnmount_RemovesSubPathMounts(t *testing.T) {
	m := privileged(t)
	v := mount(t, m, pod(t, "u", "  - {name: v}\n"), nil)["v"]
	require.NoError(t, os.WriteFile(v.HostPath+"/file", []byte("x"), 0o644))
	for range 2 { // the second takes the first off
		for _, sub := range []string{"file", "dir/sub"} {
			path, err := m.SubPath(t.Context(), "u", "c", v, sub)
			require.NoError(t, err)
			assert.True(t, strings.HasPrefix(path, filepath.Join(m.cfg.Root, "pods/u/volume-subpaths")+"/"), path)
			is, err := os.Stat(path)
			require.NoError(t, err)
			want, err := os.Stat(filepath.Join(v.HostPath, sub))
			require.NoError(t, err)
			assert.True(t, os.SameFile(want, is), sub)
		}
	}
	table, err := mounts.Below(m.cfg.Root)
	require.NoError(t, err)
	assert.Len(t, table, 2)
	require.NoError(t, m.Unmount(t.Context(), "u"))
	table, err = mounts.Below(m.cfg.Root)
	require.NoError(t, err)
	assert.Empty(t, table)
	assert.Empty(t, m.PodUIDs())
}

// Unmount does not look at a mount of a subPath before it detaches it: the server may not answer.
func TestPodDir_MayHaveSubPathMounts(t *testing.T) {
	m := manager(t, nil)
	dir, err := m.openPod("u", true)
	require.NoError(t, err)
	defer dir.close()
	for _, step := range []struct {
		path string
		want bool
	}{{"", false}, {"v/c", false}, {"v/c/0", true}} {
		require.NoError(t, os.MkdirAll(filepath.Join(dir.path, subPathsDir, step.path), 0o700))
		may, err := dir.mayHaveMounts()
		require.NoError(t, err)
		assert.Equal(t, step.want, may, step.path)
	}
}

func TestSubPath_NotADirectory(t *testing.T) {
	_, err := manager(t, nil).SubPath(t.Context(), "u", "c", runtime.Volume{Image: "i"}, "x")
	assert.ErrorContains(t, err, "not a directory")
}

// On most nodes "/" is a shared mount. Below a directory that is bound to itself each mount is then there twice, and one unmount
// removes both.
func TestOSMounter_UnmountsSharedTwice(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("mounts need root")
	}
	base := t.TempDir()
	dir := filepath.Join(base, "bound")
	path := filepath.Join(dir, "volume")
	require.NoError(t, unix.Mount("tmpfs", base, "tmpfs", 0, ""))
	t.Cleanup(func() { require.NoError(t, unix.Unmount(base, unix.MNT_DETACH)) })
	require.NoError(t, unix.Mount("", base, "", unix.MS_SHARED, ""))
	require.NoError(t, os.MkdirAll(path, 0o755))
	require.NoError(t, unix.Mount(dir, dir, "", unix.MS_BIND, ""))
	require.NoError(t, unix.Mount("tmpfs", path, "tmpfs", 0, ""))
	table, err := mounts.Below(path)
	require.NoError(t, err)
	require.Len(t, table, 2)
	for range table {
		require.NoError(t, osMounter{}.unmount(path, false))
	}
	table, err = mounts.Below(path)
	require.NoError(t, err)
	require.Empty(t, table)
	require.ErrorIs(t, osMounter{}.unmount(path+"/missing", false), unix.ENOENT)
}
