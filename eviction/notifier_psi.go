package eviction

import (
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

// PSINotifier tells when tasks have waited for a resource for Stall out of
// Window: the kernel's pressure stall trigger. It is the notice for cgroup v2,
// and for the machine as a whole on any. A process without CAP_SYS_RESOURCE can
// only have windows of whole multiples of 2 s, and is told up to one late: a
// shorter window is made longer then, Stall along with it.
type PSINotifier struct {
	Path   string        // a pressure file: /proc/pressure/memory, or a group's memory.pressure
	Full   bool          // all tasks waited; otherwise some did
	Stall  time.Duration // default: 50 ms
	Window time.Duration // 500 ms to 10 s; default: 1 s
}

// Watch tells of stalls until ctx is done.
func (n PSINotifier) Watch(ctx context.Context, crossed func()) error {
	stall, window, kind := n.Stall, n.Window, "some"
	if stall == 0 {
		stall = 50 * time.Millisecond
	}
	if window == 0 {
		window = time.Second
	}
	if n.Full {
		kind = "full"
	}
	f, err := os.OpenFile(n.Path, os.O_RDWR|unix.O_NONBLOCK, 0)
	if err != nil {
		return unsupported("pressure trigger", err)
	}
	defer f.Close() //nolint:errcheck // nothing is lost
	_, err = fmt.Fprintf(f, "%s %d %d\x00", kind, stall.Microseconds(), window.Microseconds())
	if errors.Is(err, unix.EINVAL) {
		longer := (window + 2*time.Second - 1).Truncate(2 * time.Second)
		stall = time.Duration(float64(stall) * float64(longer) / float64(window))
		_, err = fmt.Fprintf(f, "%s %d %d\x00", kind, stall.Microseconds(), longer.Microseconds())
	}
	if err != nil {
		return unsupported("pressure trigger", err)
	}
	return poll(ctx, f, func(failed bool) error {
		if failed { // of a group that is gone the kernel tells for ever
			return errRemoved
		}
		crossed()
		return nil
	})
}

// MemoryEventsNotifier tells when a group's memory.events file changes: when it was
// throttled at memory.high, met memory.max, or had processes killed.
type MemoryEventsNotifier struct {
	Path string // a group's memory.events
}

// Watch tells of changes until ctx is done.
func (n MemoryEventsNotifier) Watch(ctx context.Context, crossed func()) error {
	f, err := os.Open(n.Path)
	if err != nil {
		return unsupported("memory events", err)
	}
	defer f.Close() //nolint:errcheck // it is only read
	buf := make([]byte, 4096)
	read := func() error { // reading is what makes the kernel tell of the next change
		_, err := f.ReadAt(buf, 0)
		if err != nil && n.gone(err) {
			return fmt.Errorf("memory events: %w", err)
		}
		return nil
	}
	if err := read(); err != nil {
		return err
	}
	// Each change of such a file is marked as a failure too.
	return poll(ctx, f, func(bool) error { crossed(); return read() })
}

func (n MemoryEventsNotifier) gone(err error) bool {
	return errors.Is(err, unix.ENODEV) || errors.Is(err, fs.ErrNotExist)
}

// unsupported says that a kernel or its settings do not have a notice. Other
// failures may pass.
func unsupported(what string, err error) error {
	for _, target := range []error{fs.ErrNotExist, fs.ErrPermission, unix.EOPNOTSUPP, unix.EINVAL, unix.ENOSYS, unix.EROFS} {
		if errors.Is(err, target) {
			return fmt.Errorf("%s: %w: %w", what, runtime.ErrUnsupported, err)
		}
	}
	return fmt.Errorf("%s: %w", what, err)
}

// errRemoved says that a notice has ended because what it was about is not there.
var errRemoved = errors.New("watched file was removed")

// poll calls told each time that the kernel marks f, until ctx is done or told
// fails; failed says that it is marked as failed as well. Go's own poller does not
// wait for such marks.
func poll(ctx context.Context, f *os.File, told func(failed bool) error) error {
	woken, wake, err := os.Pipe()
	if err != nil {
		return err
	}
	var wg sync.WaitGroup
	defer woken.Close() //nolint:errcheck // nothing is lost
	defer wg.Wait()
	ended := make(chan struct{})
	defer close(ended)
	wg.Go(func() {
		select {
		case <-ctx.Done():
		case <-ended:
		}
		wake.Close() //nolint:errcheck,gosec // its end is what wakes
	})
	fds := []unix.PollFd{{Fd: int32(f.Fd()), Events: unix.POLLPRI}, {Fd: int32(woken.Fd()), Events: unix.POLLIN}}
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
			if err := told(fds[0].Revents&unix.POLLERR != 0); err != nil {
				return err
			}
		case fds[0].Revents != 0:
			return errRemoved
		}
	}
	return nil
}
