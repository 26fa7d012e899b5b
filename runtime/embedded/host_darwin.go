package embedded

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// What of host processes needs Linux is not there on macOS: mount namespaces, terminals,
// no_new_privs, figures of what processes use, and the end of processes that left their
// group.

// canDropPrivileges says that processes can be kept from getting more rights.
const canDropPrivileges = false

var errNeedsLinux = errors.New("this needs Linux")

func canIsolate() bool { return false }

func onMainThread() bool { return false }

// native is sig as this system numbers it; the CRI's names are numbered as on Linux.
func native(sig syscall.Signal) syscall.Signal {
	for name, n := range signals() {
		if here := unix.SignalNum(name); n == sig && here != 0 {
			return here
		}
	}
	return sig
}

// attributes are those of every process.
func attributes(cred *syscall.Credential) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setsid: true, Credential: cred}
}

// prepare has all descriptors but the first three closed in what this process executes.
func (p *hostProcess) prepare() error {
	entries, err := os.ReadDir("/dev/fd")
	if err != nil {
		return fmt.Errorf("look for inherited descriptors: %w", err)
	}
	for _, e := range entries {
		var fd int
		if _, err := fmt.Sscan(e.Name(), &fd); err == nil && fd > 2 {
			unix.CloseOnExec(fd)
		}
	}
	return nil
}

func (j *job) spawn(tag) (*os.Process, error) { return j.fork() }

// exitOf blocks until the process has ended, and leaves it as a zombie, so that
// its number and group cannot become another's yet.
func exitOf(pid int) {
	for !awaited(pid) { // no descriptor is free
		t := time.NewTimer(100 * time.Millisecond)
		<-t.C
	}
}

// awaited blocks until the process has ended; false says that it could not.
func awaited(pid int) bool {
	kq, err := unix.Kqueue()
	if err != nil {
		return false
	}
	defer func() { _ = unix.Close(kq) }()
	ask, told := make([]unix.Kevent_t, 1), make([]unix.Kevent_t, 1)
	unix.SetKevent(&ask[0], pid, unix.EVFILT_PROC, unix.EV_ADD|unix.EV_ONESHOT)
	ask[0].Fflags = unix.NOTE_EXIT
	for {
		n, err := unix.Kevent(kq, ask, told, nil)
		if n > 0 || errors.Is(err, unix.ESRCH) { // it has ended already
			return true
		}
		if err != nil && !errors.Is(err, unix.EINTR) {
			return false
		}
	}
}

// tag is nothing here: processes are told by their group alone.
type tag uint64

func newTag(string) (tag, error) { return 0, nil }

func readTag(string) tag { return 0 }

func killAll(map[tag]bool, map[string]bool) {}

// procTable knows nothing here.
type procTable struct{}

func (*procTable) of(int, tag) Usage { return Usage{} }

// namespace is always the host's.
type namespace struct{}

func (*namespace) close() {}

func (*namespace) enter() error { return nil }

func isolate(*hostProcess) (*namespace, error) { return nil, errNeedsLinux }

func openTerminal() (master, slave *os.File, err error) {
	return nil, nil, fmt.Errorf("open terminal: %w", errNeedsLinux)
}
