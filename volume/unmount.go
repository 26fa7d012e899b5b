package volume

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/internal/mounts"
)

// Unmount unmounts and deletes the volumes of a pod whose containers have terminated.
// It is not an error if the pod has none. Mounts that this package did not make stay,
// with their parent directories, and are named in an error that wraps ErrForeignMount.
// The directory of the pod is removed if it is then empty.
func (m *Manager) Unmount(ctx context.Context, uid types.UID) error {
	if err := checkElement("uid", string(uid)); err != nil {
		return err
	}
	defer m.locks.lock(uid)()
	m.cache.forget(uid)
	m.meter.forget(uid)
	m.forgetClaims(uid)
	m.known.unmount(uid)
	startTime := time.Now()
	ofDriver, err := m.unmountPod(ctx, uid)
	if err == nil || !ofDriver && ctx.Err() == nil { // drivers report themselves
		for _, op := range m.known.unmounts(uid) {
			m.cfg.Hooks.ended(op, startTime, err)
		}
	}
	if err == nil {
		m.known.forget(uid)
	}
	return err
}

// unmountPod unmounts and deletes the volumes of a pod, and its directory. An error may be of a driver.
func (m *Manager) unmountPod(ctx context.Context, uid types.UID) (ofDriver bool, err error) {
	dir, err := m.openPod(uid, false)
	if errors.Is(err, fs.ErrNotExist) {
		return true, m.unmountDrivers(ctx, uid)
	}
	if err != nil {
		return false, err
	}
	defer dir.close()
	err = m.unmountAll(ctx, dir)
	if err == nil {
		err = m.unmountLocals(uid, dir)
	}
	if err == nil { // mounts of subPaths keep the volumes of drivers busy
		err = m.unmountDrivers(ctx, uid)
		ofDriver = err != nil
	}
	if err == nil {
		err = dir.checkForeign()
		ofDriver = err != nil
	}
	if err == nil {
		err = mounts.Remove(ctx, dir.path, subPathsDir, devicesDir, volumesDir)
	}
	if err != nil {
		return ofDriver, fmt.Errorf("volumes of pod %s: %w", uid, err)
	}
	// Other packages use the directory, too; the last one removes it.
	err = os.Remove(dir.path)
	if err == nil || errors.Is(err, unix.ENOTEMPTY) || errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return false, fmt.Errorf("remove directory of pod %s: %w", uid, err)
}

// checkForeign returns an error if a CSI volume is left after all drivers have unmounted
// theirs: an agent with CSI drivers has made it, and what is recorded beside it is needed.
func (d *podDir) checkForeign() error {
	for _, rel := range []string{filepath.Join(volumesDir, pluginCSI), filepath.Join(devicesDir, pluginCSI)} {
		entries, err := fs.ReadDir(d.FS(), rel)
		if err == nil && len(entries) > 0 {
			return fmt.Errorf("%s has the volume %s, but this agent has no driver for it: %w", rel, entries[0].Name(), ErrForeignMount)
		}
	}
	return nil
}

// unmountAll removes the mounts of this package, the last one first.
func (m *Manager) unmountAll(ctx context.Context, dir *podDir) error {
	if some, err := dir.mayHaveMounts(); err != nil || !some {
		return err
	}
	table, err := mounts.Below(dir.path)
	if err != nil {
		return err
	}
	var errs []error
	for _, mp := range slices.Backward(table) {
		if err := ctx.Err(); err != nil {
			return errors.Join(append(errs, err)...)
		}
		rel, _ := filepath.Rel(dir.path, mp.Path)
		switch {
		case isSubPathMount(rel):
			errs = append(errs, m.mount.unmount(mp.Path, true))
		case isMemoryVolume(rel) && (mp.FSType == "tmpfs" || mp.FSType == "hugetlbfs"):
			errs = append(errs, m.mount.unmount(mp.Path, false))
		}
	}
	return errors.Join(errs...)
}

// mayHaveMounts reports whether there may be a mount in a directory in which this
// package mounts. It avoids reading the mount table, whose length grows with the
// number of containers on the node, for most pods.
func (d *podDir) mayHaveMounts() (bool, error) {
	depths := map[string]int{subPathsDir: 3} // depth of mounts below the directory
	for _, plugin := range memoryPlugins() {
		depths[filepath.Join(volumesDir, plugin)] = 1
	}
	for rel, depth := range depths {
		if some, err := d.mountedAt(rel, depth); some || err != nil {
			return true, err
		}
	}
	return false, nil
}

func (d *podDir) mountedAt(rel string, depth int) (bool, error) {
	if depth == 0 {
		if isSubPathMount(rel) { // a look at it would block while the server of its volume does not answer
			return true, nil
		}
		is, known, err := mounts.IsRoot(filepath.Join(d.path, rel))
		return is || !known, err
	}
	entries, err := fs.ReadDir(d.FS(), rel)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("find mounts in %s: %w", rel, err)
	}
	for _, e := range entries {
		if some, err := d.mountedAt(filepath.Join(rel, e.Name()), depth-1); some || err != nil {
			return true, err
		}
	}
	return false, nil
}

// isSubPathMount matches volume-subpaths/<volume>/<container>/<mount>.
func isSubPathMount(rel string) bool {
	parts := strings.Split(rel, "/")
	return len(parts) == 4 && parts[0] == subPathsDir
}

// isMemoryVolume matches volumes/<plugin>/<name> of a plugin that mounts a tmpfs or a hugetlbfs.
func isMemoryVolume(rel string) bool {
	parts := strings.Split(rel, "/")
	return len(parts) == 3 && parts[0] == volumesDir && slices.Contains(memoryPlugins(), parts[1])
}

// memoryPlugins returns the plugins that mount a tmpfs or a hugetlbfs.
func memoryPlugins() []string { return []string{pluginEmptyDir, pluginSecret, pluginProjected} }
