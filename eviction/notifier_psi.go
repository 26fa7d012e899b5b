package eviction

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sublet-dev/agent/runtime"
)

// PSINotifier notifies when tasks have waited for a resource for Stall within Window.
// It uses a trigger of the kernel's pressure stall information, for a cgroup of v2 or
// for the machine. Without CAP_SYS_RESOURCE, the kernel only accepts windows that are
// multiples of 2s and notifies up to one window late: Window is then rounded up, and
// Stall is scaled accordingly.
type PSINotifier struct {
	Path   string        // /proc/pressure/memory or the memory.pressure of a cgroup, for example
	Full   bool          // all tasks waited; false: at least one did
	Stall  time.Duration // Default: 50ms
	Window time.Duration // 500ms to 10s. Default: 1s
}

// Watch notifies of stalls until ctx is done.
func (n PSINotifier) Watch(ctx context.Context, notify func()) error {
	trigger, unprivileged := n.triggers()
	f, err := os.OpenFile(n.Path, os.O_RDWR|unix.O_NONBLOCK, 0)
	if err != nil {
		return unsupported("pressure trigger", err)
	}
	defer f.Close() //nolint:errcheck // nothing is lost
	_, err = f.WriteString(trigger)
	if errors.Is(err, unix.EINVAL) {
		_, err = f.WriteString(unprivileged)
	}
	if err != nil {
		return unsupported("pressure trigger", err)
	}
	return poll(ctx, f, func(failed bool) error {
		if failed { // for a removed cgroup, the kernel reports POLLPRI indefinitely
			return errRemoved
		}
		notify()
		return nil
	})
}

// triggers returns what is written to the pressure file, and what the kernel accepts
// without CAP_SYS_RESOURCE.
func (n PSINotifier) triggers() (trigger, unprivileged string) {
	kind, stall, window := "some", cmp.Or(n.Stall, 50*time.Millisecond), cmp.Or(n.Window, time.Second)
	if n.Full {
		kind = "full"
	}
	longer := (window + 2*time.Second - 1).Truncate(2 * time.Second)
	scaled := time.Duration(float64(stall) * float64(longer) / float64(window))
	return fmt.Sprintf("%s %d %d\x00", kind, stall.Microseconds(), window.Microseconds()),
		fmt.Sprintf("%s %d %d\x00", kind, scaled.Microseconds(), longer.Microseconds())
}

// MemoryEventsNotifier notifies when the memory.events file of a cgroup changes: after
// throttling at memory.high, reclaim at memory.max or an OOM kill.
type MemoryEventsNotifier struct {
	Path string // the memory.events or memory.events.local of a cgroup
}

// Watch notifies of changes until ctx is done.
func (n MemoryEventsNotifier) Watch(ctx context.Context, notify func()) error {
	f, err := os.Open(n.Path)
	if err != nil {
		return unsupported("memory events", err)
	}
	defer f.Close() //nolint:errcheck // it is only read
	buf := make([]byte, 4096)
	read := func() error { // the kernel reports a change once the one before has been read
		_, err := f.ReadAt(buf, 0)
		if err != nil && isRemoved(err) {
			return fmt.Errorf("memory events: %w", err)
		}
		return nil
	}
	if err := read(); err != nil {
		return err
	}
	// Each change of this file sets POLLERR too. It is read before notify: what changes while that runs is reported as well.
	return poll(ctx, f, func(bool) error {
		err := read()
		notify()
		return err
	})
}

func isRemoved(err error) bool {
	return errors.Is(err, unix.ENODEV) || errors.Is(err, fs.ErrNotExist)
}

// unsupported wraps err with runtime.ErrUnsupported if the kernel or its configuration
// lacks a notification. Other errors may be temporary.
func unsupported(name string, err error) error {
	for _, target := range []error{fs.ErrNotExist, fs.ErrPermission, unix.EOPNOTSUPP, unix.EINVAL, unix.ENOSYS, unix.EROFS} {
		if errors.Is(err, target) {
			return fmt.Errorf("%s: %w: %w", name, runtime.ErrUnsupported, err)
		}
	}
	return fmt.Errorf("%s: %w", name, err)
}

// errRemoved is returned by Watch when the watched file was removed.
var errRemoved = errors.New("watched file was removed")

// poll calls notify for each POLLPRI on f, until ctx is done or notify returns an
// error. failed reports whether POLLERR was set too. The poller of the Go runtime does
// not wait for POLLPRI.
func poll(ctx context.Context, f *os.File, notify func(failed bool) error) error {
	wakeReader, wakeWriter, err := os.Pipe()
	if err != nil {
		return err
	}
	var wg sync.WaitGroup
	defer wakeReader.Close() //nolint:errcheck // nothing is lost
	defer wg.Wait()
	done := make(chan struct{})
	defer close(done)
	wg.Go(func() {
		select {
		case <-ctx.Done():
		case <-done:
		}
		wakeWriter.Close() //nolint:errcheck,gosec // closing it wakes the poll
	})
	fds := []unix.PollFd{{Fd: int32(f.Fd()), Events: unix.POLLPRI}, {Fd: int32(wakeReader.Fd()), Events: unix.POLLIN}}
	for ctx.Err() == nil {
		_, err := unix.Poll(fds, -1)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return fmt.Errorf("poll: %w", err)
		case fds[1].Revents != 0:
			return nil
		case fds[0].Revents&unix.POLLPRI != 0:
			if err := notify(fds[0].Revents&unix.POLLERR != 0); err != nil {
				return err
			}
		case fds[0].Revents != 0:
			return errRemoved
		}
	}
	return nil
}
