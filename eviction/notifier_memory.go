package eviction

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"github.com/sublet-dev/agent/runtime"
)

var _ ThresholdUpdater = (*MemoryThresholdNotifier)(nil)

// MemoryThresholdNotifier notifies when the memory usage of a cgroup v1 cgroup crosses
// a threshold. It uses the kernel's memory thresholds, an eventfd registered in
// cgroup.event_control. The usage that corresponds to a threshold depends on the size
// of the page cache, so it is registered again after each measurement.
type MemoryThresholdNotifier struct {
	hierarchy string
	group     func() string
	signal    Signal

	mu         sync.Mutex  // guards all below
	notify     func()      // nil unless Watch runs
	registered uint64      // usage in bytes
	event      *os.File    // the eventfd; nil if no threshold is registered
	cgroupInfo os.FileInfo // of the cgroup of event
	errCh      chan error

	listeners sync.WaitGroup // Watch waits for them
}

// NewMemoryThresholdNotifier returns a notifier for a cgroup of the v1 memory hierarchy
// and the signal MemoryAvailable or AllocatableMemoryAvailable. group returns the path
// of the cgroup relative to the hierarchy, "/" for its root, or "" while it is unknown.
// It is called for each measurement; the cgroup need not exist yet.
func NewMemoryThresholdNotifier(hierarchy string, group func() string, signal Signal) (*MemoryThresholdNotifier, error) {
	if signal != MemoryAvailable && signal != AllocatableMemoryAvailable {
		return nil, fmt.Errorf("eviction: signal %s has no memory cgroup", signal)
	}
	return newMemoryThresholdNotifier(hierarchy, group, signal), nil
}

func newMemoryThresholdNotifier(hierarchy string, group func() string, signal Signal) *MemoryThresholdNotifier {
	return &MemoryThresholdNotifier{hierarchy: hierarchy, group: group, signal: signal, errCh: make(chan error, 1)}
}

// Watch notifies of each crossing until ctx is done.
func (n *MemoryThresholdNotifier) Watch(ctx context.Context, notify func()) error {
	if _, err := os.Stat(filepath.Join(n.hierarchy, "cgroup.event_control")); err != nil {
		return unsupported("memory threshold", err)
	}
	n.mu.Lock()
	n.notify = notify
	n.mu.Unlock()
	notify() // the threshold is registered after a measurement
	defer n.listeners.Wait()
	defer n.stopWatch()
	select {
	case <-ctx.Done():
		return nil
	case err := <-n.errCh:
		return unsupported("memory threshold", err)
	}
}

func (n *MemoryThresholdNotifier) stopWatch() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.notify = nil
	n.unregister()
}

// unregister removes the threshold from the kernel. n.mu must be locked.
func (n *MemoryThresholdNotifier) unregister() {
	if n.event != nil {
		n.event.Close() //nolint:errcheck,gosec // closing unregisters it
	}
	n.event, n.cgroupInfo, n.registered = nil, nil, 0
}

// UpdateThresholds registers the usage at which the next of thresholds will be met.
func (n *MemoryThresholdNotifier) UpdateThresholds(u *runtime.NodeUsage, thresholds []Threshold) Signal {
	memory := u.Memory
	if n.signal == AllocatableMemoryAvailable {
		memory = u.PodsMemory
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	dir, info, used, err := n.find()
	if err != nil {
		n.unregister() // the cgroup was removed or does not exist yet
		return ""
	}
	at, ok := usageAt(memory, n.signal, thresholds)
	if !ok || n.notify == nil {
		return ""
	}
	// The usage of the cgroup may include more than the measurement, as that of the
	// root cgroup does, so only the distance to the threshold counts.
	at = used + at - min(memory.Usage, used+at)
	if n.event == nil || !os.SameFile(info, n.cgroupInfo) || !isClose(at, n.registered) {
		event, err := register(dir, at)
		if err != nil {
			select {
			case n.errCh <- err:
			default:
			}
			return ""
		}
		n.unregister()
		n.event, n.cgroupInfo, n.registered = event, info, at
		notify := n.notify
		n.listeners.Go(func() { listen(event, notify) })
		if now, err := usageOfGroup(dir); err == nil && now > at && used <= at {
			n.notify() // usage crossed it before it was registered
		}
	}
	if n.registered <= used {
		return "" // the kernel notifies when usage falls below it
	}
	return n.signal
}

// find returns the directory of the cgroup and its usage.
func (n *MemoryThresholdNotifier) find() (dir string, info os.FileInfo, used uint64, err error) {
	group := n.group()
	if group == "" {
		return "", nil, 0, fs.ErrNotExist
	}
	dir = filepath.Join(n.hierarchy, group)
	if info, err = os.Stat(dir); err != nil {
		return "", nil, 0, err
	}
	used, err = usageOfGroup(dir)
	return dir, info, used, err
}

// isClose reports whether two thresholds differ by less than 1 MiB, which is not worth
// a new registration.
func isClose(a, b uint64) bool { return max(a, b)-min(a, b) < 1<<20 }

// listen notifies of each event until the eventfd is closed.
func listen(event *os.File, notify func()) {
	buf := make([]byte, 8)
	for {
		if _, err := event.Read(buf); err != nil {
			return
		}
		notify()
	}
}

func usageOfGroup(dir string) (uint64, error) {
	return numberIn(filepath.Join(dir, "memory.usage_in_bytes"))
}

func numberIn(path string) (uint64, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	return strconv.ParseUint(strings.TrimSpace(string(data)), 10, 64)
}

// usageAt returns the usage at which the next threshold on the signal will be met if
// the page cache keeps its size. If all are met it returns the last one. It is pure.
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
		next = last // all are met: notify when usage falls below the last one
	}
	// A large page cache, which is reclaimed first, must not move it beyond the limit.
	return min(next, m.Capacity-m.Capacity/64), next > 0
}
