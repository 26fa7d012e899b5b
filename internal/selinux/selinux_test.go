package selinux

import (
	"errors"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func TestShareDir(t *testing.T) {
	dir := t.TempDir()
	label := func() string {
		buf := make([]byte, 256)
		n, err := unix.Getxattr(dir, labelName, buf)
		if err != nil {
			return ""
		}
		return string(buf[:n])
	}
	before := label()
	require.NoError(t, shareDir(dir, filepath.Join(dir, "missing")))
	assert.Equal(t, before, label(), "without SELinux")
	err := shareDir(dir, dir)
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.ENOTSUP) {
		t.Skip("needs root and a file system with labels: ", err)
	}
	require.NoError(t, err)
	assert.Equal(t, "system_u:object_r:container_file_t:s0", label(), "that which a kubelet gives")
	require.ErrorIs(t, shareDir(filepath.Join(dir, "missing"), dir), unix.ENOENT)
}
