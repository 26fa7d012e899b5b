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

// revalidatePeriod is the period in which the content of a volume is compared file by
// file. In between only its existence is checked, because only root can change it.
const revalidatePeriod = 10 * time.Minute

// mountedVolume is a volume mounted by this process.
type mountedVolume struct {
	path   string
	plugin string
	medium corev1.StorageMedium // of an emptyDir
	// Only for content: its files, which share their bytes with the objects that they
	// come from, and the target of ..data.
	files  payload
	gid    *int64
	nested []nestedMount
	data   string
	at     time.Time // of the last comparison
}

// mountCache contains the mounted volumes of all pods. The zero value is empty.
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

// exists reports whether an emptyDir of that medium is still mounted.
func (p *mountedVolume) exists(medium corev1.StorageMedium) bool {
	if p.plugin != pluginEmptyDir || p.medium != medium {
		return false
	}
	if medium != corev1.StorageMediumDefault {
		is, _, err := mounts.IsRoot(p.path)
		return is && err == nil
	}
	var st unix.Stat_t
	return unix.Lstat(p.path, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR
}

// hasContent reports whether the volume is of that plugin and has this content.
func (p *mountedVolume) hasContent(plugin string, files payload, gid *int64) bool {
	if p.plugin != plugin || (p.gid == nil) != (gid == nil) || gid != nil && *p.gid != *gid {
		return false
	}
	if !maps.EqualFunc(p.files, files, func(a, b file) bool { return a.mode == b.mode && bytes.Equal(a.data, b.data) }) {
		return false
	}
	data, err := os.Readlink(filepath.Join(p.path, dataLink))
	return err == nil && data == p.data
}
