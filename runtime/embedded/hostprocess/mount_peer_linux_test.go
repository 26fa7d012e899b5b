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
