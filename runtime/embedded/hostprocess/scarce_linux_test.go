package hostprocess

import (
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sublet-dev/agent/runtime/embedded/internal/embeddedtest"
)

// The other processes of a container that ends while descriptors are used up are found later.
func TestExecutor_LeavesNoProcessBehindWithoutDescriptors(t *testing.T) {
	g := hostRig(t)
	dir := t.TempDir()
	const script = `setsid sh -c 'echo $$ > other; exec sleep 1000' & echo $$ > first; exec sleep 1000`
	id := g.Start(t, g.RunPod(t, embeddedtest.PodConfig("p")), nil, "sh", "-c", "cd "+dir+"; "+script)
	first, other := pidIn(t, filepath.Join(dir, "first")), pidIn(t, filepath.Join(dir, "other"))
	var old unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &old))
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 0, Max: old.Max}))
	err := syscall.Kill(first, syscall.SIGKILL)
	g.AwaitExit(t, id) // although the other one runs still
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &old))
	require.NoError(t, err)
	requireExit(t, other)
}
