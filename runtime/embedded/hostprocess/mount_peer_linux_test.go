package hostprocess

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/runtime/embedded/internal/embeddedtest"
)

func TestIsShared(t *testing.T) {
	const table = `27 1 254:0 / / rw,relatime - ext4 /dev/vda rw
42 27 254:0 /a /b\040c rw,relatime shared:1 - ext4 /dev/vda rw
421 27 254:0 /a /d rw,relatime shared:2 master:1 - ext4 /dev/vda rw
43 27 254:0 /a /e rw,relatime master:1 - shared:7 /dev/vda rw
44 27 torn
`
	for id, want := range map[uint64]bool{27: false, 42: true, 421: true, 43: false, 44: false, 4: false, 99: false} {
		assert.Equal(t, want, isShared(table, id), "mount %d", id)
	}
}

// Processes that wait for a mount that cannot propagate would wait indefinitely.
func TestExecutor_RejectsBidirectionalMountsThatAreNotShared(t *testing.T) {
	g := rootRig(t)
	dir := filepath.Join(t.TempDir(), "private")
	require.NoError(t, os.Mkdir(dir, 0o755))
	require.NoError(t, unix.Mount(dir, dir, "", unix.MS_BIND, ""))
	t.Cleanup(func() { assert.NoError(t, unix.Unmount(dir, unix.MNT_DETACH)) })
	require.NoError(t, unix.Mount("", dir, "", unix.MS_PRIVATE, ""))
	id, err := g.Create(t, g.RunPod(t, embeddedtest.PodConfig("p")), func(c *v1.ContainerConfig) {
		c.Mounts = []*v1.Mount{{HostPath: dir, ContainerPath: "/data", Propagation: v1.MountPropagation_PROPAGATION_BIDIRECTIONAL}}
	}, "sleep", "1000")
	require.NoError(t, err)
	_, err = g.CRI.StartContainer(t.Context(), &v1.StartContainerRequest{ContainerId: id})
	assert.ErrorContains(t, err, `mount "/data"`)
	assert.ErrorContains(t, err, "shared")
}
