package mounts

import (
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// asOnOldKernel calls f as an ordinary user, and as before Linux 6.6 as far as chmod is concerned.
func asOnOldKernel(f func() error) error {
	const user = 65534
	result := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // without an end: the thread ends with the goroutine
		if os.Geteuid() == 0 {
			if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, user, user, user); errno != 0 {
				result <- errno
				return
			}
		}
		filter := []unix.SockFilter{
			{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS}, // the number of the system call
			{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.SYS_FCHMODAT2, Jf: 1},
			{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS)},
			{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
		}
		program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
		err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
		if _, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, uintptr(unsafe.Pointer(&program))); errno != 0 {
			err = errno
		}
		if err == nil {
			err = f()
		}
		result <- err
	}()
	return <-result
}

// Directories without permissions are removed on every kernel, and what links point to keeps its own.
func TestRemove_InaccessibleDirectoriesOnOldKernels(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.Chmod(filepath.Dir(dir), 0o755)) //nolint:gosec // for the ordinary user
	require.NoError(t, os.MkdirAll(dir+"/pod/closed/inner", 0o755))
	require.NoError(t, os.Mkdir(dir+"/other", 0o100))
	require.NoError(t, os.Symlink("../../other", dir+"/pod/closed/link"))
	for _, d := range []string{"/pod/closed/inner", "/pod/closed", "/pod", ""} {
		if os.Geteuid() == 0 {
			require.NoError(t, os.Chown(dir+d, 65534, 65534))
		}
		if d != "" {
			require.NoError(t, os.Chmod(dir+d, 0o100))
		}
	}
	require.NoError(t, asOnOldKernel(func() error { return Remove(t.Context(), dir, "pod") }))
	require.NoDirExists(t, dir+"/pod")
	info, err := os.Stat(dir + "/other")
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o100), info.Mode().Perm())
}
