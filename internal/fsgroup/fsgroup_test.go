package fsgroup_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/internal/fsgroup"
)

// group returns a group that this process can give files to, other than that of new files
// if there is one.
func group(t *testing.T) int64 {
	t.Helper()
	if os.Geteuid() == 0 {
		return 4242
	}
	ids, err := os.Getgroups()
	require.NoError(t, err)
	for _, id := range ids {
		if id != os.Getegid() {
			return int64(id)
		}
	}
	return int64(os.Getegid())
}

func gidOf(t *testing.T, path string) int64 {
	t.Helper()
	info, err := os.Lstat(path)
	require.NoError(t, err)
	st, ok := info.Sys().(*syscall.Stat_t)
	require.True(t, ok)
	return int64(st.Gid)
}

func modeOf(t *testing.T, path string) os.FileMode {
	t.Helper()
	info, err := os.Lstat(path)
	require.NoError(t, err)
	return info.Mode()
}

func tree(t *testing.T) (dir, outside string) {
	t.Helper()
	dir, outside = t.TempDir(), t.TempDir()
	require.NoError(t, os.MkdirAll(dir+"/a/b", 0o700))
	require.NoError(t, os.WriteFile(dir+"/a/b/file", nil, 0o600))
	require.NoError(t, os.WriteFile(outside+"/file", nil, 0o600))
	require.NoError(t, os.Symlink(outside, dir+"/a/link"))
	require.NoError(t, os.Symlink("nowhere", dir+"/dangling"))
	require.NoError(t, syscall.Mkfifo(dir+"/pipe", 0o600))
	return dir, outside
}

func TestApply_ChangesEverythingInTheVolume(t *testing.T) {
	dir, outside := tree(t)
	g := group(t)
	before := gidOf(t, outside+"/file")
	require.NoError(t, fsgroup.Apply(t.Context(), dir, g, corev1.FSGroupChangeAlways, nil))
	for _, path := range []string{"", "/a", "/a/b", "/a/b/file", "/a/link", "/dangling", "/pipe"} {
		assert.Equal(t, g, gidOf(t, dir+path), path)
	}
	for _, path := range []string{"", "/a", "/a/b"} {
		assert.Equal(t, os.FileMode(0o770)|os.ModeSetgid, modeOf(t, dir+path)&(os.ModeSetgid|0o770), path)
	}
	assert.Equal(t, os.FileMode(0o660), modeOf(t, dir+"/a/b/file").Perm())
	assert.Equal(t, before, gidOf(t, outside+"/file"), "no link leads out")
	assert.Equal(t, os.FileMode(0o600), modeOf(t, outside+"/file").Perm())
}

func TestApply_OnRootMismatch(t *testing.T) {
	dir, _ := tree(t)
	g := group(t)
	require.NoError(t, fsgroup.Apply(t.Context(), dir, g, corev1.FSGroupChangeOnRootMismatch, nil))
	assert.Equal(t, g, gidOf(t, dir+"/a/b/file"))
	require.NoError(t, os.Chmod(dir+"/a/b/file", 0o400))
	require.NoError(t, fsgroup.Apply(t.Context(), dir, g, corev1.FSGroupChangeOnRootMismatch, nil))
	assert.Equal(t, os.FileMode(0o400), modeOf(t, dir+"/a/b/file").Perm(), "the directory matches")
	require.NoError(t, os.Chmod(dir, 0o700))
	require.NoError(t, fsgroup.Apply(t.Context(), dir, g, corev1.FSGroupChangeOnRootMismatch, nil))
	assert.Equal(t, os.FileMode(0o660), modeOf(t, dir+"/a/b/file").Perm(), "it does not")
}

func TestApply_Fails(t *testing.T) {
	dir, _ := tree(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, fsgroup.Apply(ctx, dir, group(t), corev1.FSGroupChangeAlways, nil), context.Canceled)
	require.ErrorIs(t, fsgroup.Apply(t.Context(), dir+"/none", 1, corev1.FSGroupChangeAlways, nil), os.ErrNotExist)
	require.ErrorIs(t, fsgroup.Apply(t.Context(), dir+"/a/b/file", 1, corev1.FSGroupChangeAlways, nil), syscall.ENOTDIR)
	deep := filepath.Join(dir, strings.Repeat("d/", 600))
	require.NoError(t, os.MkdirAll(deep, 0o700))
	require.ErrorContains(t, fsgroup.Apply(t.Context(), dir, group(t), corev1.FSGroupChangeAlways, nil), "directories deep")
}

func TestChangePolicy(t *testing.T) {
	assert.Equal(t, corev1.FSGroupChangeAlways, fsgroup.ChangePolicy(&corev1.Pod{}))
	policy := corev1.FSGroupChangeOnRootMismatch
	pod := &corev1.Pod{Spec: corev1.PodSpec{SecurityContext: &corev1.PodSecurityContext{FSGroupChangePolicy: &policy}}}
	assert.Equal(t, policy, fsgroup.ChangePolicy(pod))
}

// Programs keep what the kernel takes from a file that gets a group.
func TestApply_KeepsSetuidAndSetgid(t *testing.T) {
	dir := t.TempDir()
	g := group(t)
	const special = os.ModeSetuid | os.ModeSetgid
	for name, mode := range map[string]os.FileMode{"/both": special | 0o755, "/setuid": os.ModeSetuid | 0o700, "/plain": 0o755, "/ready": special | 0o770} {
		require.NoError(t, os.WriteFile(dir+name, nil, 0o600))
		if name == "/ready" {
			require.NoError(t, os.Chown(dir+name, -1, int(g)))
		}
		require.NoError(t, os.Chmod(dir+name, mode))
	}
	for range 2 {
		require.NoError(t, fsgroup.Apply(t.Context(), dir, g, corev1.FSGroupChangeAlways, nil))
		for name, want := range map[string]os.FileMode{"/both": special | 0o775, "/setuid": os.ModeSetuid | 0o760, "/plain": 0o775, "/ready": special | 0o770} {
			assert.Equal(t, g, gidOf(t, dir+name), name)
			assert.Equal(t, want, modeOf(t, dir+name), name)
		}
	}
}
