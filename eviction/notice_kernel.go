package eviction

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sublet-dev/agent/runtime"
)

// PressureNotice tells when tasks have waited for a resource for Stall out of
// Window: the kernel's pressure stall trigger. It is the notice for cgroup v2,
// and for the machine as a whole on any. A process without CAP_SYS_RESOURCE can
// only have windows of whole multiples of 2 s, and is told up to one late: a
// shorter window is made longer then, Stall along with it.
type PressureNotice struct {
	Path   string        // a pressure file: /proc/pressure/memory, or a group's memory.pressure
	Full   bool          // all tasks waited; otherwise some did
	Stall  time.Duration // default: 50 ms
	Window time.Duration // 500 ms to 10 s; default: 1 s
}

// Watch tells of stalls until ctx is done.
func (n PressureNotice) Watch(ctx context.Context, crossed func()) error {
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
	return poll(ctx, f, func() error { crossed(); return nil })
}

// EventsNotice tells when a group's memory.events file changes: when it was
// throttled at memory.high, met memory.max, or had processes killed.
type EventsNotice struct {
	Path string // a group's memory.events
}

// Watch tells of changes until ctx is done.
func (n EventsNotice) Watch(ctx context.Context, crossed func()) error {
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
	return poll(ctx, f, func() error { crossed(); return read() })
}

func (n EventsNotice) gone(err error) bool {
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

// poll calls told each time that the kernel marks f, until ctx is done or told
// fails. Go's own poller does not wait for such marks.
func poll(ctx context.Context, f *os.File, told func() error) error {
	wake, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return fmt.Errorf("eventfd: %w", err)
	}
	var wg sync.WaitGroup
	defer unix.Close(wake) //nolint:errcheck // nothing is lost
	defer wg.Wait()
	ended := make(chan struct{})
	defer close(ended)
	wg.Go(func() {
		select {
		case <-ctx.Done():
			unix.Write(wake, []byte{1, 0, 0, 0, 0, 0, 0, 0}) //nolint:errcheck,gosec // it cannot be full
		case <-ended:
		}
	})
	fds := []unix.PollFd{{Fd: int32(f.Fd()), Events: unix.POLLPRI}, {Fd: int32(wake), Events: unix.POLLIN}}
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
			if err := told(); err != nil {
				return err
			}
		case fds[0].Revents != 0:
			return fmt.Errorf("poll: what was watched is gone")
		}
	}
	return nil
}

// UsageNotice tells when the memory usage of a cgroup v1 group crosses what a
// threshold comes to: the kernel's memory threshold by eventfd. What usage that
// is depends on how much of it is page cache, so it is armed anew after each
// measurement.
type UsageNotice struct {
	group  string
	signal Signal

	mu      sync.Mutex // guards all below
	crossed func()     // nil while nobody watches
	armed   uint64
	event   *os.File // told by the kernel; nil while not armed
	broken  chan error

	listening sync.WaitGroup // Watch waits for it
}

// NewUsageNotice returns a notice for the group in folder, which is in v1's
// memory hierarchy, about the signal MemoryAvailable or
// AllocatableMemoryAvailable.
func NewUsageNotice(folder string, signal Signal) (*UsageNotice, error) {
	if signal != MemoryAvailable && signal != AllocatableMemoryAvailable {
		return nil, fmt.Errorf("eviction: %s is not about the memory of a group", signal)
	}
	return &UsageNotice{group: folder, signal: signal, broken: make(chan error, 1)}, nil
}

// Watch tells of crossings until ctx is done.
func (n *UsageNotice) Watch(ctx context.Context, crossed func()) error {
	if _, err := os.Stat(filepath.Join(n.group, "cgroup.event_control")); err != nil {
		return unsupported("memory threshold", err)
	}
	n.mu.Lock()
	n.crossed = crossed
	n.mu.Unlock()
	crossed() // a measurement arms it
	defer n.listening.Wait()
	defer n.disarm()
	select {
	case <-ctx.Done():
		return nil
	case err := <-n.broken:
		return unsupported("memory threshold", err)
	}
}

func (n *UsageNotice) disarm() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.crossed = nil
	if n.event != nil {
		n.event.Close() //nolint:errcheck,gosec // closing takes the kernel's threshold away
		n.event, n.armed = nil, 0
	}
}

// Arm moves the kernel's threshold to where the next one of thresholds will be
// crossed.
func (n *UsageNotice) Arm(u *runtime.NodeUsage, thresholds []Threshold) {
	memory := u.Memory
	if n.signal == AllocatableMemoryAvailable {
		memory = u.AllPods
	}
	at, ok := usageAt(memory, n.signal, thresholds)
	before, err := n.usage()
	if !ok || err != nil {
		return
	}
	// The group may count other things than the measurement does, as that of
	// all processes does; what counts is how far it is to go.
	at = before + at - min(memory.Usage, before+at)
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.crossed == nil || n.event != nil && near(at, n.armed) {
		return
	}
	event, err := n.register(at)
	if err != nil {
		select {
		case n.broken <- err:
		default:
		}
		return
	}
	if n.event != nil {
		n.event.Close() //nolint:errcheck,gosec // closing takes the old threshold away
	}
	n.event, n.armed = event, at
	tell := n.crossed
	n.listening.Go(func() { listen(event, tell) })
	if now, err := n.usage(); err == nil && now > at && before <= at {
		n.crossed() // it was crossed before the kernel knew
	}
}

// near reports whether moving a threshold is not worth it: 1 MiB or so.
func near(a, b uint64) bool { return max(a, b)-min(a, b) < 1<<20 }

// listen tells each crossing until the event is closed.
func listen(event *os.File, crossed func()) {
	buf := make([]byte, 8)
	for {
		if _, err := event.Read(buf); err != nil {
			return
		}
		crossed()
	}
}

// register asks the kernel to tell when usage crosses the figure.
func (n *UsageNotice) register(at uint64) (*os.File, error) {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("eventfd: %w", err)
	}
	event := os.NewFile(uintptr(fd), "memory threshold")
	usage, err := os.Open(filepath.Join(n.group, "memory.usage_in_bytes"))
	if err != nil {
		return nil, errors.Join(err, event.Close())
	}
	defer usage.Close() //nolint:errcheck // the kernel keeps what it needs
	line := fmt.Sprintf("%d %d %d", fd, usage.Fd(), at)
	if err := os.WriteFile(filepath.Join(n.group, "cgroup.event_control"), []byte(line), 0); err != nil {
		return nil, errors.Join(err, event.Close())
	}
	return event, nil
}

func (n *UsageNotice) usage() (uint64, error) {
	data, err := os.ReadFile(filepath.Join(n.group, "memory.usage_in_bytes"))
	if err != nil {
		return 0, err
	}
	return strconv.ParseUint(strings.TrimSpace(string(data)), 10, 64)
}

// usageAt returns the usage at which the next threshold on the signal will be
// crossed, if the page cache stays as it is. It is pure.
func usageAt(m runtime.MemoryUsage, signal Signal, thresholds []Threshold) (uint64, bool) {
	if m.At.IsZero() || m.Capacity == 0 {
		return 0, false
	}
	cache := m.Usage - min(m.WorkingSet, m.Usage)
	var next, last uint64
	for _, t := range thresholds {
		bound := t.Value.Of(m.Capacity)
		if t.Signal != signal || bound >= m.Capacity {
			continue
		}
		at := m.Capacity - bound + cache
		last = max(last, at)
		if at > m.Usage && (next == 0 || at < next) {
			next = at
		}
	}
	if next == 0 {
		next = last // all are crossed; the way back is told too
	}
	// Cache that has to give way first must not move it beyond the limit.
	return min(next, m.Capacity-m.Capacity/64), next > 0
}
