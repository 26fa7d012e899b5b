package csi

import (
	"context"
	"errors"
	"os"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sublet-dev/agent/internal/mounts"
)

// lieAbout has the driver report success for methods without doing anything.
func (e *testEnv) lieAbout(methods ...string) {
	e.driver.SetBefore(func(_ context.Context, method string, _ any) error {
		if slices.Contains(methods, method) {
			return errors.ErrUnsupported
		}
		return nil
	})
}

// VD-3: the server of a mounted volume may not answer, so that a look at the volume would block.
// The mount table says that it is mounted; that nothing looks is shown by volumes that are not there.
func TestMount_DoesNotStatMountedVolumes(t *testing.T) {
	e := newEnv(t, nil)
	one, two := e.volumeOf(newPod("1"), "v"), e.volumeOf(newPod("2"), "v")
	path := e.mounted(one)
	_, staging := e.paths.staging(&volumeID{driver: "csitest.example", handle: "v", name: "pv-v"})
	for _, dir := range []string{path, staging} {
		if os.Geteuid() == 0 {
			require.NoError(t, unix.Unmount(dir, unix.UMOUNT_NOFOLLOW))
		}
		require.NoError(t, os.RemoveAll(dir))
	}
	e.methods()
	reads := 0
	e.mountsBelow = func(dir string) ([]mounts.Point, error) {
		reads++
		return []mounts.Point{{Path: dir}}, nil
	}
	assert.Equal(t, path, e.mounted(one))
	assert.Empty(t, e.methods(), "it is mounted")
	assert.Equal(t, 1, reads, "of the mount table")
	for _, labels := range []bool{false, true} {
		e.mountsBelow = func(dir string) ([]mounts.Point, error) {
			return []mounts.Point{{Path: dir, HasLabels: !labels}, {Path: dir, HasLabels: labels}}, nil
		}
		for _, readOnly := range []bool{false, true} {
			v := one
			v.ReadOnly = readOnly
			mounted, err := e.Mount(t.Context(), v)
			require.NoError(t, err)
			assert.Equal(t, labels && !readOnly, mounted.SELinuxRelabel, "as of the uppermost mount")
		}
	}

	e.lieAbout("NodePublishVolume", "NodeUnpublishVolume")
	e.mounted(two)
	assert.Equal(t, []string{"NodePublishVolume"}, e.methods(), "it is staged")
	require.ErrorContains(t, e.Unmount(t.Context(), "1"), path+" is still mounted")

	e.mountsBelow = func(string) ([]mounts.Point, error) { return nil, errors.New("table is not readable") }
	_, err := e.Mount(t.Context(), one)
	require.ErrorContains(t, err, "table is not readable")
	e.mountsBelow = mounts.Below
	e.lieAbout()
	e.unmounted(one.Pod)
	e.unmounted(two.Pod)
	e.requireNothingLeft()
}

// What is mounted below a volume, or beside it, is not the volume.
func TestMount_NeedsAMountOfItsOwn(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("requires root: an ordinary user's driver cannot mount")
	}
	e := newEnv(t, nil)
	v := e.volumeOf(newPod("1"), "v")
	target := e.paths.target("1", &volumeID{name: "pv-v"})
	require.NoError(t, os.MkdirAll(target, 0o750))
	e.mountsBelow = func(dir string) ([]mounts.Point, error) { return []mounts.Point{{Path: dir + "/sub"}}, nil }
	e.lieAbout("NodePublishVolume")
	_, err := e.Mount(t.Context(), v)
	require.ErrorContains(t, err, "nothing is mounted at "+target)
	e.mountsBelow = mounts.Below
	e.lieAbout()
	e.mounted(v)
	e.unmounted(v.Pod)
	e.requireNothingLeft()
}
