//go:build linux

package cgroup

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// OW-3: a container with a writable cgroup can nest cgroups deeper than any path.
func TestRemoveTree_DeepTree(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "pod")
	require.NoError(t, os.Mkdir(dir, 0o700))
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "beside", "below"), 0o700))
	at, err := unix.Open(dir, openDir, 0)
	require.NoError(t, err)
	name := strings.Repeat("d", 200)
	for range 100 {
		require.NoError(t, unix.Mkdirat(at, name, 0o700))
		require.NoError(t, unix.Mkdirat(at, "beside it", 0o700))
		next, err := unix.Openat(at, name, openDir, 0)
		require.NoError(t, err)
		require.NoError(t, unix.Close(at))
		at = next
	}
	require.NoError(t, unix.Close(at))

	visited := 0
	require.NoError(t, walkDirs(dir, func(int) error { visited++; return nil }, nil))
	assert.Equal(t, 1+2+2*100, visited)
	require.NoError(t, removeTree(t.Context(), dir))
	assert.NoDirExists(t, dir)
	require.NoError(t, removeTree(t.Context(), dir), "there is none")
}

// A pod that ends is removed several times. Only what can have been made since is looked up: after an
// Ensure, and what PodUIDs finds.
func TestManager_RemovesOnce(t *testing.T) {
	m, err := New(Config{})
	require.NoError(t, err)
	tr := &recordedTree{root: t.TempDir()}
	m.tree = tr
	const uid = "b1e5"
	group, err := m.named().pod(corev1.PodQOSBurstable, uid)
	require.NoError(t, err)
	dir := tr.dirs(group)[0]
	remove := func() bool {
		t.Helper()
		require.NoError(t, os.MkdirAll(dir, 0o700))
		require.NoError(t, m.Remove(t.Context(), uid))
		_, err := os.Stat(dir)
		return os.IsNotExist(err)
	}
	assert.True(t, remove(), "of a process before this one")
	assert.False(t, remove(), "it was removed")
	_, err = m.PodUIDs()
	require.NoError(t, err)
	assert.True(t, remove())
	m.put(uid, podGroup{qos: corev1.PodQOSBurstable, group: group})
	assert.True(t, remove())
	assert.False(t, remove())

	for i := range 3 * maxRemoved {
		m.put(types.UID(fmt.Sprint("other", i)), podGroup{})
		require.LessOrEqual(t, len(m.removed), maxRemoved)
	}
	assert.True(t, remove(), "it was one of many")
}
