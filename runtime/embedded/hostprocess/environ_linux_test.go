package hostprocess

import (
	"bufio"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// hugeEnviron makes the test binary a process with an environment of that size. Any
// process may say which of its memory is its environment.
const hugeEnviron = "HOSTPROCESS_TEST_HUGE_ENVIRON"

// OW-3: the environment of a process can be as large as its address space.
func TestContainerOf_HugeEnvironment(t *testing.T) {
	if size, err := strconv.Atoi(os.Getenv(hugeEnviron)); err == nil {
		claimEnviron(t, size)
		_, _ = os.Stdout.WriteString("ready\n")
		select {}
	}
	p := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$")
	p.Env = append(os.Environ(), hugeEnviron+"="+strconv.Itoa(1<<30))
	out, err := p.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, p.Start())
	defer func() { _, _ = p.Process.Kill(), p.Wait() }()
	if line, _ := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
		t.Skip("this kernel does not let a process move its environment: " + line)
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	assert.Empty(t, containerOf(p.Process.Pid))
	runtime.ReadMemStats(&after)
	assert.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(64<<20))
}

// claimEnviron maps size bytes and makes them the environment of this process.
func claimEnviron(t *testing.T, size int) {
	t.Helper()
	mem, err := unix.Mmap(-1, 0, size, unix.PROT_READ, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	require.NoError(t, err)
	b, err := os.ReadFile("/proc/self/stat")
	require.NoError(t, err)
	f := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
	field := func(n int) uint64 { // as proc_pid_stat(5) counts them
		v, err := strconv.ParseUint(f[n-3], 10, 64)
		require.NoError(t, err)
		return v
	}
	brk, _, _ := unix.Syscall(unix.SYS_BRK, 0, 0, 0)
	env := uint64(uintptr(unsafe.Pointer(&mem[0])))
	m := struct { // struct prctl_mm_map
		startCode, endCode, startData, endData, startBrk, brk, startStack uint64
		argStart, argEnd, envStart, envEnd                                uint64
		auxv                                                              uint64
		auxvSize, exeFD                                                   uint32
	}{
		field(26), field(27), field(45), field(46), field(47), uint64(brk), field(28),
		field(48), field(49), env, env + uint64(size), 0, 0, ^uint32(0),
	}
	require.NoError(t, unix.Prctl(unix.PR_SET_MM, unix.PR_SET_MM_MAP, uintptr(unsafe.Pointer(&m)), unsafe.Sizeof(m), 0))
}
