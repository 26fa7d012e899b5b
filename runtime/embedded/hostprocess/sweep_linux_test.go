package hostprocess

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/runtime/embedded/internal/embeddedtest"
)

func removal(id string) *v1.RemoveContainerRequest {
	return &v1.RemoveContainerRequest{ContainerId: id}
}

// makeDeep makes directories nested so deep that no path can name the last one.
func makeDeep(t *testing.T, dir string, depth int) {
	t.Helper()
	fd, err := unix.Open(dir, unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	require.NoError(t, err)
	for range depth {
		require.NoError(t, unix.Mkdirat(fd, "d", 0o755))
		next, err := unix.Openat(fd, "d", unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		require.NoError(t, err)
		require.NoError(t, unix.Close(fd))
		fd = next
	}
	require.NoError(t, unix.Close(fd))
}

// limitDescriptors makes descriptors as scarce as they are for an ordinary service.
func limitDescriptors(t *testing.T, n uint64) {
	t.Helper()
	var old unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &old))
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: min(n, old.Max), Max: old.Max}))
	t.Cleanup(func() { require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &old)) })
}

func TestExecutor_RemovesHostileScratchDirectories(t *testing.T) {
	hostile := func(t *testing.T, dir string) (kept string) {
		kept = filepath.Join(t.TempDir(), "kept")
		require.NoError(t, os.WriteFile(kept, nil, 0o600))
		require.NoError(t, os.Symlink(filepath.Dir(kept), filepath.Join(dir, "link")))
		makeDeep(t, dir, 1500)
		limitDescriptors(t, 512)
		return kept
	}

	t.Run("with the container", func(t *testing.T) {
		h := New(Config{Root: t.TempDir(), Unprivileged: true})
		g := newRig(t, h)
		id := g.Start(t, g.RunPod(t, embeddedtest.PodConfig("p")), nil, "true")
		g.AwaitExit(t, id)
		dir, err := h.scratch(id)
		require.NoError(t, err)
		kept := hostile(t, filepath.Join(dir, workDir))

		_, err = g.CRI.RemoveContainer(t.Context(), removal(id))
		require.NoError(t, err)
		assert.NoDirExists(t, dir)
		assert.FileExists(t, kept, "removed through a link")
	})

	t.Run("with the temporary root", func(t *testing.T) {
		h := New(Config{Unprivileged: true})
		g := newRig(t, h)
		g.AwaitExit(t, g.Start(t, g.RunPod(t, embeddedtest.PodConfig("p")), nil, "true"))
		root := h.root
		kept := hostile(t, root)

		require.NoError(t, g.Close())
		assert.NoDirExists(t, root)
		assert.FileExists(t, kept, "removed through a link")
	})

	t.Run("of a killed process", func(t *testing.T) {
		root := t.TempDir()
		stale := filepath.Join(root, "containers", strings.Repeat("a", 64))
		require.NoError(t, os.MkdirAll(stale, 0o711))
		kept := hostile(t, stale)

		g := newRig(t, New(Config{Root: root, Unprivileged: true}))
		g.AwaitExit(t, g.Start(t, g.RunPod(t, embeddedtest.PodConfig("p")), nil, "true"))
		assert.NoDirExists(t, stale)
		assert.FileExists(t, kept, "removed through a link")
	})
}

func TestExecutor_KeepsMountsInScratchDirectories(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: it mounts")
	}
	root, source := t.TempDir(), t.TempDir()
	kept := filepath.Join(source, "kept")
	require.NoError(t, os.WriteFile(kept, nil, 0o600))
	stale := filepath.Join(root, "containers", strings.Repeat("a", 64))
	target := filepath.Join(stale, "mounted")
	require.NoError(t, os.MkdirAll(target, 0o711))
	require.NoError(t, unix.Mount(source, target, "", unix.MS_BIND, ""))
	t.Cleanup(func() { require.NoError(t, unix.Unmount(target, unix.MNT_DETACH)) })

	log := &strings.Builder{}
	h := New(Config{Root: root, Unprivileged: true, Logger: embeddedtest.TextLogger(log)})
	g := newRig(t, h)
	g.AwaitExit(t, g.Start(t, g.RunPod(t, embeddedtest.PodConfig("p")), nil, "true"))
	assert.FileExists(t, kept, "removed through a mount")
	assert.Contains(t, log.String(), "removing container directory failed")
	require.NoError(t, g.Close(), "a directory that stays is not the next container's concern")
}
