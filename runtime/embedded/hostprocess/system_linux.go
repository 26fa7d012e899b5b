package hostprocess

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// canDropPrivileges is whether processes can be kept from gaining privileges.
const canDropPrivileges = true

// canIsolate reports whether mount namespaces can be created, and mounts in the way of
// isolate: with open_tree, move_mount and mount_setattr (Linux 5.12).
func canIsolate() bool {
	if err := unix.MountSetattr(-1, "", unix.AT_EMPTY_PATH, &unix.MountAttr{}); errors.Is(err, unix.ENOSYS) {
		return false
	}
	done := make(chan error)
	ownThread(func() { done <- unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS) })
	return <-done == nil
}

func onMainThread() bool { return unix.Gettid() == os.Getpid() }

// native returns the number of sig on this system.
func native(sig syscall.Signal) syscall.Signal { return sig }

// attributes returns the attributes of every process.
func attributes(cred *syscall.Credential) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL, Credential: cred}
}

// prepare sets what processes inherit from the calling thread, which is locked and
// discarded later.
func (p *containerProcess) prepare() error {
	if err := unix.Unshare(unix.CLONE_FS); err != nil { // or the umask would be the whole process's
		return fmt.Errorf("unshare file system attributes: %w", err)
	}
	unix.Umask(0o022)
	if p.c.Config.GetLinux().GetSecurityContext().GetNoNewPrivs() {
		if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
			return fmt.Errorf("set no_new_privs: %w", err)
		}
	}
	return keepDescriptors()
}

// keepDescriptors marks all descriptors but the first three close-on-exec. Go does so
// for those that it opens, not for inherited ones.
func keepDescriptors() error {
	err := unix.CloseRange(3, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC)
	if err == nil {
		return nil
	}
	entries, err := os.ReadDir("/proc/self/fd") // Linux before 5.11
	if err != nil {
		return fmt.Errorf("list inherited descriptors: %w", err)
	}
	for _, e := range entries {
		var fd int
		if _, err := fmt.Sscan(e.Name(), &fd); err == nil && fd > 2 {
			unix.CloseOnExec(fd)
		}
	}
	return nil
}

// spawn starts the process and tags it before its program runs: the kernel stops a
// traced process when it executes.
//
// A traced process ignores the set-user-ID bit and the capabilities of a program, so
// that such a program is tagged right after its start, as all are where this process
// may not trace.
func (j *job) spawn(t tag) (*os.Process, error) {
	j.attr.Ptrace = t != 0 && !privileged(j.path)
	proc, err := j.fork()
	if err != nil && j.attr.Ptrace && errors.Is(err, fs.ErrPermission) {
		j.attr.Ptrace = false
		proc, err = j.fork()
	}
	if err != nil {
		return nil, err
	}
	if j.attr.Ptrace {
		await(proc.Pid, unix.WSTOPPED|unix.WEXITED)
	}
	setOOMScore(proc.Pid, j.oom)
	limitProcesses(proc.Pid)
	// Else it has exited, it is not permitted, or it may have started others before.
	j.tagged = t != 0 && t.set(proc.Pid) == nil && j.attr.Ptrace
	if j.attr.Ptrace {
		_ = unix.PtraceDetach(proc.Pid) // it may have exited
	}
	return proc, nil
}

// setOOMScore sets how soon the kernel kills a process when it is out of memory. Without it that
// would be as late as this process, which its service may have protected. An ordinary user can
// only make it sooner than that.
func setOOMScore(pid int, score int64) {
	_ = os.WriteFile(fmt.Sprintf("/proc/%d/oom_score_adj", pid), strconv.AppendInt(nil, score, 10), 0o600)
}

// maxReserve is how many threads of the limit of processes are for this process alone.
const maxReserve = 256

// limitProcesses keeps the last processes that the user may have for this process: without
// them it could not start a thread, which the Go runtime does not survive, when a container
// starts all it can. All processes of a user count, against the limit of the one that forks.
func limitProcesses(pid int) {
	var limit unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NPROC, &limit) != nil || limit.Cur == unix.RLIM_INFINITY {
		return
	}
	n := withoutReserve(limit.Cur)
	limit = unix.Rlimit{Cur: n, Max: n}
	_ = unix.Prlimit(pid, unix.RLIMIT_NPROC, &limit, nil) // it has exited, or is privileged
}

func withoutReserve(limit uint64) uint64 { return limit - min(limit/4, maxReserve) }

// privileged reports whether a program raises the privileges of its process.
func privileged(path string) bool {
	st, err := os.Stat(path)
	if err != nil || st.Mode()&(os.ModeSetuid|os.ModeSetgid) != 0 {
		return true
	}
	n, err := unix.Getxattr(path, "security.capability", nil)
	return err == nil && n > 0
}

// exitOf blocks until the process has exited, and leaves it a zombie, so that its PID
// and process group are not reused.
func exitOf(pid int) { await(pid, unix.WEXITED) }

func await(pid, events int) {
	for {
		err := unix.Waitid(unix.P_PID, pid, nil, events|unix.WNOWAIT, nil)
		if !errors.Is(err, unix.EINTR) {
			return
		}
	}
}
