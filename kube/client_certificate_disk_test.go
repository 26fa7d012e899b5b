//go:build linux

package kube

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"k8s.io/client-go/rest"
)

// A kubeconfig is replaced as a whole or not at all: a node has no other with its certificate. A link to it stays.
func TestClientCertificate_KeepsTheKubeconfigOnAFullDisk(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=64k"); err != nil {
		t.Skip("needs root: ", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	file, link := filepath.Join(dir, "k"), filepath.Join(dir, "link")
	require.NoError(t, os.Symlink("k", link))
	c, err := NewClientCertificate(ClientCertificateConfig{NodeName: "n", BootstrapKubeconfig: "/b", Kubeconfig: link, Dir: t.TempDir()})
	require.NoError(t, err)
	bootstrap := &rest.Config{Host: "https://api.example"}
	bootstrap.CAData = bytes.Repeat([]byte("ca"), 4096)
	require.NoError(t, os.WriteFile(file, []byte("previous"), 0o600))
	filler := filepath.Join(dir, "filler")
	require.ErrorIs(t, os.WriteFile(filler, make([]byte, 1<<20), 0o600), unix.ENOSPC)
	require.ErrorIs(t, c.writeKubeconfig(bootstrap), unix.ENOSPC)
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	assert.Equal(t, "previous", string(text))

	require.NoError(t, os.Remove(filler))
	require.NoError(t, c.writeKubeconfig(bootstrap))
	text, err = os.ReadFile(file)
	require.NoError(t, err)
	assert.Contains(t, string(text), "https://api.example")
	to, err := os.Readlink(link)
	require.NoError(t, err)
	assert.Equal(t, "k", to)
}
