//go:build linux

package main

import (
	"errors"
	"os"
	"path/filepath"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// mounted makes a mount for the length of the case.
func (c critest) mounted(source, target, kind string, flags uintptr) {
	c.Helper()
	err := unix.Mount(source, target, kind, flags, "")
	if errors.Is(err, unix.EPERM) {
		c.Skip("root may not mount here")
	}
	require.NoError(c, err)
	c.Cleanup(func() { assert.NoError(c, unix.Unmount(target, unix.MNT_DETACH)) })
}

// propagation is what critest asks of each mode.
func propagation(mode v1.MountPropagation, host uintptr, in, out bool) func(critest) {
	return func(c critest) {
		c.root()
		dir := c.TempDir()
		volume, source := filepath.Join(dir, "mnt"), filepath.Join(dir, "source")
		point := filepath.Join(volume, "point")
		require.NoError(c, os.MkdirAll(point, 0o700))
		require.NoError(c, os.MkdirAll(source, 0o700))
		require.NoError(c, os.WriteFile(filepath.Join(source, "flag"), nil, 0o600))
		c.mounted(volume, volume, "", unix.MS_BIND|unix.MS_REC)
		require.NoError(c, unix.Mount("", volume, "", host|unix.MS_REC, ""))

		config := idle(&v1.LinuxContainerSecurityContext{Privileged: true})
		config.Mounts = []*v1.Mount{{HostPath: volume, ContainerPath: volume, Propagation: mode}}
		id := c.inNewPod(config)
		shown := c.container(id).GetMounts()
		require.Len(c, shown, 1)
		assert.Equal(c, config.GetMounts()[0].String(), shown[0].String())

		c.mounted(source, point, "", unix.MS_BIND|unix.MS_REC)
		assert.Equal(c, in, c.exec(id, "ls", "-A", point) != "", "a mount of the host is seen")
		mine := filepath.Join(volume, "mine")
		c.exec(id, "sh", "-c", "mkdir -p "+mine)
		c.exec(id, "sh", "-c", "mount --bind /etc "+mine)
		entries, err := os.ReadDir(mine)
		require.NoError(c, err)
		assert.Equal(c, out, len(entries) > 0, "a mount of the container gets out")
		if out {
			require.NoError(c, unix.Unmount(mine, unix.MNT_DETACH))
		}
	}
}

// readOnly asks whether a mount below a read-only one can be written to.
func readOnly(recursive bool) func(critest) {
	return func(c critest) {
		c.root()
		dir := c.TempDir()
		below := filepath.Join(dir, "tmpfs")
		require.NoError(c, os.Mkdir(below, 0o700))
		c.mounted("none", below, "tmpfs", 0)
		if recursive && !c.recursive() {
			c.Skip("the kernel cannot")
		}
		config := idle(nil)
		config.Mounts = []*v1.Mount{{HostPath: dir, ContainerPath: "/mnt", Readonly: true, RecursiveReadOnly: recursive, SelinuxRelabel: true}}
		id := c.inNewPod(config)
		if recursive {
			c.exec(id, "sh", "-c", `touch /mnt/tmpfs/foo 2>&1 | grep -q "Read-only file system"`)
			assert.NoFileExists(c, filepath.Join(below, "foo"))
			require.NoError(c, os.WriteFile(filepath.Join(below, "ours"), nil, 0o600), "the host's mount became read-only")
			return
		}
		c.exec(id, "touch", "/mnt/tmpfs/file")
		assert.FileExists(c, filepath.Join(below, "file"))
	}
}

// recursive reports whether Status tells that read-only goes all the way down.
func (c critest) recursive() bool {
	resp, err := c.rs.Status(c.Context(), &v1.StatusRequest{})
	require.NoError(c, err)
	return resp.GetRuntimeHandlers()[0].GetFeatures().GetRecursiveReadOnlyMounts()
}

func rejected(readonly bool, p v1.MountPropagation) func(critest) {
	return func(c critest) {
		pod, sandbox := c.pod(nil)
		config := idle(nil)
		config.Mounts = []*v1.Mount{{HostPath: c.TempDir(), ContainerPath: "/mnt", Readonly: readonly, RecursiveReadOnly: true, Propagation: p}}
		_, err := c.create(pod, sandbox, config)
		assert.Error(c, err)
	}
}

// mountCases are those of "Container Mount Propagation" and "Container Mount Readonly".
func mountCases() map[string]func(critest) {
	const private, slave, shared = v1.MountPropagation_PROPAGATION_PRIVATE, v1.MountPropagation_PROPAGATION_HOST_TO_CONTAINER, v1.MountPropagation_PROPAGATION_BIDIRECTIONAL
	return map[string]func(critest){
		"mount with 'rprivate' should not support propagation":                                  propagation(private, unix.MS_PRIVATE, false, false),
		"mount with 'rslave' should support propagation from host to container":                 propagation(slave, unix.MS_SHARED, true, false),
		"mount with 'rshared' should support propagation from host to container and vice versa": propagation(shared, unix.MS_SHARED, true, true),
		"should support non-recursive readonly mounts":                                          readOnly(false),
		"should support recursive readonly mounts":                                              readOnly(true),
		"should reject a recursive readonly mount with PROPAGATION_HOST_TO_CONTAINER":           rejected(true, slave),
		"should reject a recursive readonly mount with PROPAGATION_BIDIRECTIONAL":               rejected(true, shared),
		"should reject a recursive readonly mount with ReadOnly: false":                         rejected(false, private),
	}
}

// imageVolumeCases are those of "Image Volume", which may be answered by saying that
// there are none.
func imageVolumeCases() map[string]func(critest) {
	create := func(c critest, readonly bool) (image, id string, err error) {
		pod, sandbox := c.pod(nil)
		image = c.pulled(staging + "test-image-tag:test").GetId()
		config := &v1.ContainerConfig{Command: []string{"sh", "-c", "top"}, Image: &v1.ImageSpec{Image: image}, Mounts: []*v1.Mount{
			{HostPath: "/tmp", ContainerPath: "/mnt/tmp"},
			{ContainerPath: "/mnt/image-volume", Readonly: readonly, Image: &v1.ImageSpec{Image: image}},
		}}
		id, err = c.create(pod, sandbox, config)
		return image, id, err
	}
	return map[string]func(critest){
		"should return image digest in ContainerStatus mounts": func(c critest) {
			image, id, err := create(c, true)
			if status.Code(err) == codes.Unimplemented {
				return // critest skips the case
			}
			require.NoError(c, err)
			mounts := c.container(id).GetMounts()
			require.Len(c, mounts, 2)
			assert.Empty(c, mounts[0].GetImage())
			assert.Equal(c, image, mounts[1].GetImage().GetImageRef())
		},
		"should reject Image Volume with Readonly set to false": func(c critest) {
			_, _, err := create(c, false)
			assert.Equal(c, codes.InvalidArgument, status.Code(err))
		},
	}
}
