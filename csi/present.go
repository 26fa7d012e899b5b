package csi

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/internal/mounts"
)

// isMounted reports whether the mount table has something at path. A look at path itself
// would block for as long as the server of what is mounted does not answer.
func (m *Manager) isMounted(path string) (bool, error) {
	_, is, err := m.mountAt(path)
	return is, err
}

// mountAt returns the uppermost mount at path, if there is one.
func (m *Manager) mountAt(path string) (mounted mounts.Point, is bool, err error) {
	dir, err := filepath.EvalSymlinks(filepath.Dir(path)) // as in the mount table
	if errors.Is(err, fs.ErrNotExist) {
		return mounted, false, nil
	}
	if err != nil {
		return mounted, false, err
	}
	path = filepath.Join(dir, filepath.Base(path))
	table, err := m.mountsBelow(path)
	if errors.Is(err, fs.ErrNotExist) {
		return mounted, false, nil // this system has no table
	}
	for _, p := range table {
		if p.Path == path {
			mounted, is = p, true
		}
	}
	return mounted, is, err
}

// exists reports whether something is mounted at path, and whether anything is there.
func (m *Manager) exists(path string) (mounted, exists bool, err error) {
	if mounted, err := m.isMounted(path); mounted || err != nil {
		return mounted, mounted, err
	}
	_, err = os.Lstat(path)
	return false, err == nil, nil
}

// isPresent reports whether something is mounted where a volume is published. Devices are
// local, so it may look at them.
func (m *Manager) isPresent(o *operation) (bool, error) {
	target := m.paths.target(o.uid, &o.id)
	if !o.id.block {
		mounted, is, err := m.mountAt(target)
		if o.mounted, o.hasLabels = is, mounted.HasLabels; is || err != nil {
			return is, err
		}
	}
	return countsAsMounted(target), nil
}

// countsAsMounted looks at what the mount table does not have. As an ordinary user a driver
// cannot mount, and a symbolic link counts for every user.
func countsAsMounted(target string) bool {
	info, err := os.Lstat(target)
	if err != nil {
		return false
	}
	if !info.IsDir() || os.Geteuid() != 0 {
		return true
	}
	is, known, err := mounts.IsRoot(target)
	return is || !known && err == nil
}

// mayHave reports whether a pod whose directory cannot be read may have a volume, by what is elsewhere: the record of a
// device, the mount table, and what is staged. What is not published for that pod it gets only after its directory was read.
func (m *Manager) mayHave(uid types.UID, o *operation) bool {
	if o.id.block {
		_, err := os.Lstat(m.paths.record(uid, &o.id))
		return !errors.Is(err, fs.ErrNotExist)
	}
	pods, err := filepath.EvalSymlinks(m.paths.pods())
	if err != nil {
		return true
	}
	table, err := m.mountsBelow(filepath.Join(pods, string(uid)))
	target := "/" + filepath.Join(pluginDirName, o.id.name, "mount")
	if err != nil || slices.ContainsFunc(table, func(p mounts.Point) bool { return strings.HasSuffix(p.Path, target) }) {
		return true
	}
	if !o.client.can[canStage] {
		return true // it may publish by links, which only the directory has
	}
	dir, path := m.paths.staging(&o.id)
	if _, err := os.Lstat(filepath.Join(dir, recordName)); errors.Is(err, fs.ErrNotExist) {
		return false // it is published for no pod
	}
	staged, err := m.isMounted(path) // its driver mounts, so that the table has all of it
	return err != nil || !staged
}

// usablePath returns the path of a published volume for the runtime: of a device that of
// its node.
func (m *Manager) usablePath(o *operation) (string, error) {
	target := m.paths.target(o.uid, &o.id)
	if o.mounted {
		return target, nil
	}
	path, err := filepath.EvalSymlinks(target)
	if err != nil {
		return "", fmt.Errorf("CSI driver %s: published volume: %w", o.id.driver, err)
	}
	if !o.id.block {
		return target, nil
	}
	info, err := os.Stat(path)
	if err != nil {
		return "", fmt.Errorf("CSI driver %s: published device: %w", o.id.driver, err)
	}
	if info.Mode()&fs.ModeDevice == 0 || info.Mode()&fs.ModeCharDevice != 0 {
		return "", fmt.Errorf("CSI driver %s: %s is not a block device: its mode is %s", o.id.driver, path, info.Mode())
	}
	return path, nil
}
