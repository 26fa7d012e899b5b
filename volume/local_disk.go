package volume

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/internal/logattr"
	"github.com/sublet-dev/agent/internal/mounts"
)

// localMounts is where the devices of local PersistentVolumes are mounted, each once for all its pods, as with
// the kubelet.
const localMounts = "plugins/kubernetes.io/local-volume/mounts"

// mountLocal mounts the device of a local PersistentVolume, if that is not done, and returns where. Until unlock is
// called it stays mounted; then while a pod has its mark.
func (m *Manager) mountLocal(ctx context.Context, v *DriverVolume, device string) (path string, unlock func(), err error) {
	if err := checkElement("name", v.PersistentVolume.Name); err != nil {
		return "", nil, err
	}
	if !m.mount.canMount() {
		return "", nil, mountError("mount", device, unix.EPERM)
	}
	dir := filepath.Join(m.cfg.Root, localMounts)
	if err := os.MkdirAll(dir, modeTraverse); err != nil {
		return "", nil, err
	}
	if dir, err = filepath.EvalSymlinks(dir); err != nil { // as in the mount table
		return "", nil, err
	}
	path = filepath.Join(dir, v.PersistentVolume.Name)
	if cached, ok := m.cache.get(v.Pod.UID, v.Volume.Name); ok && cached.path == path {
		if is, known, err := mounts.IsRoot(path); is && known && err == nil {
			return path, func() {}, nil
		}
	}
	unlock, err = m.diskLocks.lockContext(ctx, path)
	if err != nil {
		return "", nil, fmt.Errorf("another pod has %s mounted: %w", device, err)
	}
	if err := m.mountDisk(ctx, v, device, path); err != nil {
		unlock()
		return "", nil, err
	}
	return path, unlock, nil
}

// mountDisk mounts a device on path, unless it is mounted there.
func (m *Manager) mountDisk(ctx context.Context, v *DriverVolume, device, path string) error {
	table, err := mounts.Below(path)
	if err != nil {
		return err
	}
	for _, mounted := range table {
		switch {
		case mounted.Path != path: // what the volume has
		case !isSameDevice(mounted.Source, device):
			return fmt.Errorf("%s is mounted on %s, for pods that had another volume %s: it waits for their end", mounted.Source, path, v.PersistentVolume.Name)
		case mounted.ReadOnly && !v.ReadOnly && !newDisk(v, device).readOnly:
			return fmt.Errorf("%s is mounted read-only, for pods that do not write: it waits for their end", device)
		default:
			return nil
		}
	}
	if err := m.makeMarks(v.Pod.UID); err != nil { // Unmount looks for devices of pods that have some
		return err
	}
	if err := os.Mkdir(path, modeTraverse); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	// Of two volumes with one device, the second is not to find it half formatted.
	real, err := filepath.EvalSymlinks(device)
	if err != nil {
		return err
	}
	unlock, err := m.diskLocks.lockContext(ctx, real)
	if err != nil {
		return fmt.Errorf("another volume has %s mounted: %w", device, err)
	}
	defer unlock()
	d := newDisk(v, device)
	d.log = m.cfg.Logger.With(logattr.Pod(v.Pod), logattr.PodUID(v.Pod.UID), slog.String("volume", v.PersistentVolume.Name), slog.String("device", device))
	if err := d.mount(ctx, path); err != nil {
		_ = os.Remove(path) // it is made again
		return err
	}
	return nil
}

// isSameDevice reports whether two paths are of one device.
func isSameDevice(a, b string) bool {
	var one, other unix.Stat_t
	return unix.Stat(a, &one) == nil && unix.Stat(b, &other) == nil && one.Mode&unix.S_IFMT == unix.S_IFBLK && one.Rdev == other.Rdev
}

// diskRetryPeriod is the least time after which the end of a pod without local volumes tries the devices
// that stayed mounted at the end of their last pod.
const diskRetryPeriod = time.Minute

// busyDisks is when devices that could not be unmounted are tried. The zero value is for none.
type busyDisks struct {
	mu      sync.Mutex
	retryAt time.Time
}

func (b *busyDisks) due() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return !b.retryAt.IsZero() && !time.Now().Before(b.retryAt)
}

func (b *busyDisks) tried(failed bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.retryAt = time.Time{}
	if failed {
		b.retryAt = time.Now().Add(diskRetryPeriod)
	}
}

// unmountLocals unmounts the devices of local PersistentVolumes that no pod has but this one, which may have been
// interrupted before it had its mark. As with the kubelet, a device that is busy keeps no pod from ending: it stays
// mounted for the next pod that has it, and is tried when another pod ends.
func (m *Manager) unmountLocals(uid types.UID, pod *podDir) error {
	if _, err := pod.Lstat(marks); err != nil && !m.busyDisks.due() {
		return nil // it has no local volumes
	}
	dir, err := filepath.EvalSymlinks(filepath.Join(m.cfg.Root, localMounts))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	failed := false
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		if err := m.unmountUnused(uid, path); err != nil {
			failed = true
			m.cfg.Logger.Warn("volume of no pod stays mounted", slog.String("path", path), logattr.Err(err))
		}
	}
	m.busyDisks.tried(failed)
	return nil
}

// unmountUnused unmounts a device unless another pod than uid has it.
func (m *Manager) unmountUnused(uid types.UID, path string) error {
	unlock := m.diskLocks.tryLock(path)
	if unlock == nil { // a pod is about to have it
		return nil
	}
	defer unlock()
	shared, err := m.othersHaveMark(uid, path)
	if err != nil {
		m.cfg.Logger.Warn("volume stays mounted: another pod may have it", slog.String("path", path), logattr.Err(err))
	}
	if shared || err != nil {
		return nil
	}
	table, err := mounts.Below(path)
	if err != nil {
		return err
	}
	for _, mounted := range table {
		if mounted.Path != path {
			continue
		}
		startTime := time.Now()
		err := m.mount.unmount(path, false)
		m.cfg.Hooks.ended(Operation{OperationUnmountDevice, Kind{Plugin: pluginOf(sourceLocal)}}, startTime, err)
		if err != nil {
			return err
		}
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
