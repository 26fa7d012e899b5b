package hostprocess

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sublet-dev/agent/runtime/embedded"
	"github.com/sublet-dev/agent/runtime/embedded/internal/signals"
)

// Not available on macOS: mount namespaces, terminals, no_new_privs, usage, and the
// kill of processes that left their process group.

// canDropPrivileges is whether processes can be kept from gaining privileges.
const canDropPrivileges = false

var errNeedsLinux = errors.New("requires Linux")

func canIsolate() bool { return false }

func onMainThread() bool { return false }

// native returns the number of sig on this system; the CRI has Linux' numbers.
func native(sig syscall.Signal) syscall.Signal {
	for name, n := range signals.All() {
		if here := unix.SignalNum(name); n == sig && here != 0 {
			return here
		}
	}
	return sig
}

// attributes returns the attributes of every process.
func attributes(cred *syscall.Credential) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setsid: true, Credential: cred}
}

// prepare marks all descriptors but the first three close-on-exec.
func (p *containerProcess) prepare() error {
	entries, err := os.ReadDir("/dev/fd")
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

func (j *job) spawn(tag) (*os.Process, error) { return j.fork() }

// exitOf blocks until the process has exited, and leaves it a zombie, so that its PID
// and process group are not reused.
func exitOf(pid int) {
	for !awaited(pid) { // no descriptor is free
		t := time.NewTimer(100 * time.Millisecond)
		<-t.C
	}
}

// awaited blocks until the process has exited; false if that is impossible.
func awaited(pid int) bool {
	kq, err := unix.Kqueue()
	if err != nil {
		return false
	}
	defer func() { _ = unix.Close(kq) }()
	changes, events := make([]unix.Kevent_t, 1), make([]unix.Kevent_t, 1)
	unix.SetKevent(&changes[0], pid, unix.EVFILT_PROC, unix.EV_ADD|unix.EV_ONESHOT)
	changes[0].Fflags = unix.NOTE_EXIT
	for {
		n, err := unix.Kevent(kq, changes, events, nil)
		if n > 0 || errors.Is(err, unix.ESRCH) { // it has exited already
			return true
		}
		if err != nil && !errors.Is(err, unix.EINTR) {
			return false
		}
	}
}

// tag is unused here: processes are identified by their process group.
type tag uint64

func newTag(string) (tag, error) { return 0, nil }

func readTag(string) tag { return 0 }

func killAll(map[tag]bool, map[string]bool) (complete bool) { return true }

// reaper is empty here: process 1 is never this process.
type reaper struct{}

func (reaper) add(*containerProcess) {}

func (reaper) drop(*containerProcess) {}

func (*containerProcess) reapAll() {}

// procTable is empty here.
type procTable struct{}

func (*procTable) of(int, tag) (embedded.Usage, time.Time) { return embedded.Usage{}, time.Time{} }

// namespace is always the host's.
type namespace struct{}

func (*namespace) close() {}

func (*namespace) enter() error { return nil }

func isolate(*containerProcess) (*namespace, error) { return nil, errNeedsLinux }

func openTerminal() (master, slave *os.File, err error) {
	return nil, nil, fmt.Errorf("open terminal: %w", errNeedsLinux)
}
