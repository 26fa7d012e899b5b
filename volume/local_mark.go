package volume

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"k8s.io/apimachinery/pkg/types"
)

// pluginLocal is the directory of marks: for each local PersistentVolume that a pod has as a
// file system, a symbolic link to it, which Unmount removes with all volumes of the pod.
const pluginLocal = "kubernetes.io~local-volume"

// marks is the path of the marks of a pod in its directory.
const marks = volumesDir + "/" + pluginLocal

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

// othersHaveMark reports whether another pod has a mark for path. The error says for which pods that is unknown, if
// none is known to have one.
func (m *Manager) othersHaveMark(uid types.UID, path string) (bool, error) {
	pods, err := os.ReadDir(filepath.Join(m.cfg.Root, "pods"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	var errs []error
	for _, e := range pods {
		if !e.IsDir() || e.Name() == string(uid) {
			continue
		}
		marked, err := m.hasMark(types.UID(e.Name()), path)
		if marked {
			return true, nil
		}
		errs = append(errs, err)
	}
	return false, errors.Join(errs...)
}

// mark makes a mark for path.
func (m *Manager) mark(v *DriverVolume, path string) error {
	dir, err := m.openPod(v.Pod.UID, true)
	if err != nil {
		return err
	}
	defer dir.close()
	if err := dir.ensureDir(marks, modeTraverse); err != nil {
		return err
	}
	link := filepath.Join(marks, v.PersistentVolume.Name)
	if err := dir.Remove(link); err != nil && !errors.Is(err, fs.ErrNotExist) { // one for another path
		return err
	}
	return dir.Symlink(path, link)
}

// makeMarks makes the directory of the marks of a pod.
func (m *Manager) makeMarks(uid types.UID) error {
	dir, err := m.openPod(uid, true)
	if err != nil {
		return err
	}
	defer dir.close()
	return dir.ensureDir(marks, modeTraverse)
}
