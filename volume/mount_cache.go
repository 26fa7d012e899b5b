package volume

import (
	"bytes"
	"maps"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/internal/mounts"
)

// revalidatePeriod is the time after which a volume is compared again, file by file, with
// what it should be. In between it is enough that it is there: nobody but root can
// change it otherwise.
const revalidatePeriod = 10 * time.Minute

// mountedVolume is a volume that this process has put in place.
type mountedVolume struct {
	path   string
	plugin string
	medium corev1.StorageMedium // of an emptyDir
	// Content has its files, which share their bytes with the objects that they came
	// from, and where ..data led.
	files payload
	gid   *int64
	data  string
	at    time.Time // of the last close look
}

// mountCache are the volumes of all pods. The zero value is empty.
type mountCache struct {
	mu   sync.Mutex
	pods map[types.UID]map[string]mountedVolume
}

func (m *mountCache) get(uid types.UID, volume string) (mountedVolume, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	p, ok := m.pods[uid][volume]
	return p, ok && time.Since(p.at) < revalidatePeriod
}

func (m *mountCache) put(uid types.UID, volume string, p mountedVolume) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.pods == nil {
		m.pods = make(map[types.UID]map[string]mountedVolume)
	}
	if m.pods[uid] == nil {
		m.pods[uid] = make(map[string]mountedVolume, 1)
	}
	m.pods[uid][volume] = p
}

func (m *mountCache) forget(uid types.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.pods, uid)
}

// isFolder reports whether an emptyDir is there as it was made.
func (p *mountedVolume) isFolder(medium corev1.StorageMedium) bool {
	if p.plugin != pluginEmptyDir || p.medium != medium {
		return false
	}
	if medium == corev1.StorageMediumMemory {
		is, _, err := mounts.IsRoot(p.path)
		return is && err == nil
	}
	var st unix.Stat_t
	return unix.Lstat(p.path, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR
}

// holds reports whether the volume is of that plugin and has this content already.
func (p *mountedVolume) holds(plugin string, files payload, gid *int64) bool {
	if p.plugin != plugin || (p.gid == nil) != (gid == nil) || gid != nil && *p.gid != *gid {
		return false
	}
	if !maps.EqualFunc(p.files, files, func(a, b file) bool { return a.mode == b.mode && bytes.Equal(a.data, b.data) }) {
		return false
	}
	data, err := os.Readlink(filepath.Join(p.path, dataLink))
	return err == nil && data == p.data
}
