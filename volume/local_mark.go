package volume

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// pluginLocal is the directory of marks: for each local PersistentVolume that a pod has as a
// file system, a symbolic link to it, which Unmount removes with all volumes of the pod.
const pluginLocal = "kubernetes.io~local-volume"

// hasMark reports whether a pod has a mark for path.
func (m *Manager) hasMark(uid types.UID, path string) (bool, error) {
	dir, err := m.openPod(uid, false)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer dir.close()
	marks := filepath.Join(volumesDir, pluginLocal)
	entries, err := fs.ReadDir(dir.FS(), marks)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, fmt.Errorf("local volumes of pod %s: %w", uid, err)
	}
	for _, e := range entries {
		if target, err := dir.Readlink(filepath.Join(marks, e.Name())); err == nil && target == path {
			return true, nil
		}
	}
	return false, nil
}

// othersHaveMark reports whether another pod has a mark for path.
func (m *Manager) othersHaveMark(uid types.UID, path string) (bool, error) {
	pods, err := os.ReadDir(filepath.Join(m.cfg.Root, "pods"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	for _, e := range pods {
		if !e.IsDir() || e.Name() == string(uid) {
			continue
		}
		if marked, err := m.hasMark(types.UID(e.Name()), path); marked || err != nil {
			return marked, err
		}
	}
	return false, nil
}

// mark makes a mark for path.
func (m *Manager) mark(v *DriverVolume, path string) error {
	dir, err := m.openPod(v.Pod.UID, true)
	if err != nil {
		return err
	}
	defer dir.close()
	marks := filepath.Join(volumesDir, pluginLocal)
	if err := dir.ensureDir(marks, modeTraverse); err != nil {
		return err
	}
	link := filepath.Join(marks, v.PersistentVolume.Name)
	if err := dir.Remove(link); err != nil && !errors.Is(err, fs.ErrNotExist) { // one for another path
		return err
	}
	return dir.Symlink(path, link)
}

const (
	// localInWork is the plugin in the cache of a volume whose files get their group.
	localInWork = "local, in work"
	// localForever keeps the entry of a volume in the cache until the pod has ended.
	localForever = 100 * 365 * 24 * time.Hour
	// localWaitPeriod is the period in which a pod checks whether another one is ready.
	localWaitPeriod = 100 * time.Millisecond
)

// startLocal notes in the cache that the files at path get the group of a pod. It blocks
// while those get that of another pod: this pod must not start before, and must do it if the
// other one fails. endLocal must be called after it.
func (c *mountCache) startLocal(ctx context.Context, v *DriverVolume, path string) error {
	if c.tryStartLocal(v, path) {
		return nil
	}
	ticker := time.NewTicker(localWaitPeriod)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return fmt.Errorf("another pod has its group set for %s: %w", path, ctx.Err())
		case <-ticker.C:
			if c.tryStartLocal(v, path) {
				return nil
			}
		}
	}
}

func (c *mountCache) tryStartLocal(v *DriverVolume, path string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, volumes := range c.pods {
		for _, other := range volumes {
			if other.plugin == localInWork && other.path == path {
				return false
			}
		}
	}
	if c.pods == nil {
		c.pods = map[types.UID]map[string]mountedVolume{}
	}
	if c.pods[v.Pod.UID] == nil {
		c.pods[v.Pod.UID] = map[string]mountedVolume{}
	}
	c.pods[v.Pod.UID][v.Volume.Name] = mountedVolume{path: path, plugin: localInWork, at: time.Now()}
	return true
}

func (c *mountCache) endLocal(v *DriverVolume) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.pods[v.Pod.UID][v.Volume.Name].plugin == localInWork {
		delete(c.pods[v.Pod.UID], v.Volume.Name)
	}
}
