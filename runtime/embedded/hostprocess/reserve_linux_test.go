package hostprocess

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sublet-dev/agent/runtime/embedded/internal/embeddedtest"
)

// The kernel counts the threads of this process with those of the containers of its user.
func TestExecutor_KeepsProcessesForItself(t *testing.T) {
	assert.EqualValues(t, 0, withoutReserve(0))
	assert.EqualValues(t, 300, withoutReserve(400))
	assert.EqualValues(t, 9744, withoutReserve(10_000))

	var old unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_NPROC, &old))
	t.Cleanup(func() { require.NoError(t, unix.Setrlimit(unix.RLIMIT_NPROC, &old)) })
	own := min(old.Cur, 1<<20) // less than this user may need would end the test
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_NPROC, &unix.Rlimit{Cur: own, Max: old.Max}))
	g := hostRig(t)
	const read = `awk '/^Max processes/ { print $3, $4 }' /proc/self/limits`
	id := g.Start(t, g.RunPod(t, embeddedtest.PodConfig("p")), nil, "sh", "-c", read+"; exec sleep 1000")
	assert.Equal(t, fmt.Sprint(withoutReserve(own), " ", withoutReserve(own)), g.shell(t, id, read))
}
