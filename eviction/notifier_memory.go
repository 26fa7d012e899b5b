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

// MemoryThresholdNotifier tells when the memory usage of a cgroup v1 group crosses what a
// threshold comes to: the kernel's memory threshold by eventfd. What usage that
// is depends on how much of it is page cache, so it is armed anew after each
// measurement.
type MemoryThresholdNotifier struct {
	hierarchy string
	group     func() string
	signal    Signal

	mu         sync.Mutex // guards all below
	crossed    func()     // nil while nobody watches
	armed      uint64
	event      *os.File    // told by the kernel; nil while not armed
	cgroupInfo os.FileInfo // of the group that event is about
	broken     chan error

	listening sync.WaitGroup // Watch waits for it
}

// NewMemoryThresholdNotifier returns a notice for a group of v1's memory hierarchy, about the
// signal MemoryAvailable or AllocatableMemoryAvailable. group is asked again and
// again for the group's path below the hierarchy: it need not be there yet, "" is
// for not known, and "/" for the hierarchy itself.
func NewMemoryThresholdNotifier(hierarchy string, group func() string, signal Signal) (*MemoryThresholdNotifier, error) {
	if signal != MemoryAvailable && signal != AllocatableMemoryAvailable {
		return nil, fmt.Errorf("eviction: %s is not about the memory of a group", signal)
	}
	return &MemoryThresholdNotifier{hierarchy: hierarchy, group: group, signal: signal, broken: make(chan error, 1)}, nil
}

// Watch tells of crossings until ctx is done.
func (n *MemoryThresholdNotifier) Watch(ctx context.Context, crossed func()) error {
	if _, err := os.Stat(filepath.Join(n.hierarchy, "cgroup.event_control")); err != nil {
		return unsupported("memory threshold", err)
	}
	n.mu.Lock()
	n.crossed = crossed
	n.mu.Unlock()
	crossed() // a measurement arms it
	defer n.listening.Wait()
	defer n.stopWatch()
	select {
	case <-ctx.Done():
		return nil
	case err := <-n.broken:
		return unsupported("memory threshold", err)
	}
}

func (n *MemoryThresholdNotifier) stopWatch() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.crossed = nil
	n.disarm()
}

// disarm takes the kernel's threshold away. n.mu is held.
func (n *MemoryThresholdNotifier) disarm() {
	if n.event != nil {
		n.event.Close() //nolint:errcheck,gosec // closing takes it away
	}
	n.event, n.cgroupInfo, n.armed = nil, nil, 0
}

// UpdateThresholds moves the kernel's threshold to where the next one of thresholds will be
// crossed.
func (n *MemoryThresholdNotifier) UpdateThresholds(u *runtime.NodeUsage, thresholds []Threshold) Signal {
	memory := u.Memory
	if n.signal == AllocatableMemoryAvailable {
		memory = u.PodsMemory
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	dir, folder, before, err := n.find()
	if err != nil {
		n.disarm() // it went away, or is not there yet
		return ""
	}
	at, ok := usageAt(memory, n.signal, thresholds)
	if !ok || n.crossed == nil {
		return ""
	}
	// The group may count other things than the measurement does, as that of
	// all processes does; what counts is how far it is to go.
	at = before + at - min(memory.Usage, before+at)
	if n.event == nil || !os.SameFile(folder, n.cgroupInfo) || !near(at, n.armed) {
		event, err := register(dir, at)
		if err != nil {
			select {
			case n.broken <- err:
			default:
			}
			return ""
		}
		n.disarm()
		n.event, n.cgroupInfo, n.armed = event, folder, at
		tell := n.crossed
		n.listening.Go(func() { listen(event, tell) })
		if now, err := usageOfGroup(dir); err == nil && now > at && before <= at {
			n.crossed() // it was crossed before the kernel knew
		}
	}
	if n.armed <= before {
		return "" // what it tells is the way back
	}
	return n.signal
}

// find returns the group's folder and what it uses.
func (n *MemoryThresholdNotifier) find() (dir string, folder os.FileInfo, used uint64, err error) {
	group := n.group()
	if group == "" {
		return "", nil, 0, fs.ErrNotExist
	}
	dir = filepath.Join(n.hierarchy, group)
	if folder, err = os.Stat(dir); err != nil {
		return "", nil, 0, err
	}
	used, err = usageOfGroup(dir)
	return dir, folder, used, err
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

func usageOfGroup(dir string) (uint64, error) {
	data, err := os.ReadFile(filepath.Join(dir, "memory.usage_in_bytes"))
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
