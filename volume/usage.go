package volume

import (
	"log/slog"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/internal/logattr"
	"github.com/sublet-dev/agent/runtime"
)

const (
	usagePeriod = time.Minute // of measuring a volume that is asked for
	usageMaxAge = 5 * time.Minute
	// usageWait is how long a new measurement is waited for: a file system that answers does so at
	// once, and one that does not is waited for once.
	usageWait = 10 * time.Millisecond
)

// meter measures the file systems of mounted volumes. Each measurement is a goroutine, because a
// server that does not answer blocks it; there is one for a volume at a time.
type meter struct {
	statfs func(path string) (runtime.FSUsage, error)
	log    *slog.Logger

	mu   sync.Mutex
	pods map[types.UID]map[string]*measuredVolume // by names of volumes in the pod
}

// measuredVolume is guarded by the mutex of its meter.
type measuredVolume struct {
	path  string
	usage runtime.FSUsage // the last one; its At is zero before, and after a failure
	began time.Time       // of the last measurement
	done  chan struct{}   // closed at the end of the one under way; nil: there is none
}

// add begins to measure a mounted volume, unless it is known.
func (m *meter) add(uid types.UID, volume, path string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if v := m.pods[uid][volume]; v != nil && v.path == path {
		return
	}
	if m.pods == nil {
		m.pods = map[types.UID]map[string]*measuredVolume{}
	}
	if m.pods[uid] == nil {
		m.pods[uid] = map[string]*measuredVolume{}
	}
	m.pods[uid][volume] = &measuredVolume{path: path}
}

func (m *meter) forget(uid types.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.pods, uid)
}

// VolumeUsage implements UsageReporter.
func (m *meter) VolumeUsage(uid types.UID) map[string]runtime.FSUsage {
	timeout := time.NewTimer(usageWait)
	defer timeout.Stop()
	for _, done := range m.begin(uid) {
		select {
		case <-done:
		case <-timeout.C:
			return m.known(uid)
		}
	}
	return m.known(uid)
}

// begin begins the measurements that are due, and returns what is closed at their ends.
func (m *meter) begin(uid types.UID) []<-chan struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()
	var begun []<-chan struct{}
	for name, v := range m.pods[uid] {
		if v.done != nil || !v.began.IsZero() && time.Since(v.began) < usagePeriod {
			continue
		}
		done := make(chan struct{})
		v.began, v.done = time.Now(), done
		begun = append(begun, done)
		go m.measure(uid, name, v)
	}
	return begun
}

func (m *meter) measure(uid types.UID, name string, v *measuredVolume) {
	usage, err := m.statfs(v.path)
	if err != nil {
		usage = runtime.FSUsage{}
		m.log.Debug("volume not measured", logattr.PodUID(uid), slog.String("volume", name), logattr.Err(err))
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	v.usage = usage
	close(v.done)
	v.done = nil
}

// known returns the results that are not too old.
func (m *meter) known(uid types.UID) map[string]runtime.FSUsage {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := map[string]runtime.FSUsage{}
	for name, v := range m.pods[uid] {
		if !v.usage.At.IsZero() && time.Since(v.usage.At) < usageMaxAge {
			out[name] = v.usage
		}
	}
	return out
}
