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

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/internal/mounts"
)

// Unmount takes the volumes of a pod away, whose containers are gone: it
// unmounts what this package mounts and deletes the folders. A pod without
// volumes is no error. What is mounted there by somebody else stays as it is,
// with the way to it, and is named in an error that wraps ErrForeignMount. The
// pod's folder itself goes if it is empty then.
func (m *Manager) Unmount(ctx context.Context, uid types.UID) error {
	if err := element("uid", string(uid)); err != nil {
		return err
	}
	defer m.locks.lock(uid)()
	m.known.forget(uid)
	dir, err := m.openPod(uid, false)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer dir.close()
	if err := m.unmountAll(ctx, dir); err != nil {
		return fmt.Errorf("volumes of pod %s: %w", uid, err)
	}
	if err := mounts.Remove(ctx, dir.path, subPathsDir, volumesDir); err != nil {
		return fmt.Errorf("volumes of pod %s: %w", uid, err)
	}
	// Others keep things in the folder too: the last one out takes it away.
	err = os.Remove(dir.path)
	if err == nil || errors.Is(err, unix.ENOTEMPTY) || errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return fmt.Errorf("folder of pod %s: %w", uid, err)
}

// unmountAll takes off what is ours, the last mounted first.
func (m *Manager) unmountAll(ctx context.Context, dir *podDir) error {
	if some, err := dir.someMounted(); err != nil || !some {
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
		case isMemoryVolume(rel) && mp.FSType == "tmpfs":
			errs = append(errs, m.mount.unmount(mp.Path, false))
		}
	}
	return errors.Join(errs...)
}

// someMounted reports whether there may be a mount at one of the places where this
// package makes them. It spares most pods a look at the mount table, which is as
// long as the node has containers.
func (d *podDir) someMounted() (bool, error) {
	places := map[string]int{subPathsDir: 3} // and how much deeper mounts are
	for _, plugin := range memoryPlugins() {
		places[filepath.Join(volumesDir, plugin)] = 1
	}
	for rel, depth := range places {
		if some, err := d.mountedAt(rel, depth); some || err != nil {
			return true, err
		}
	}
	return false, nil
}

func (d *podDir) mountedAt(rel string, depth int) (bool, error) {
	if depth == 0 {
		is, known, err := mounts.IsRoot(filepath.Join(d.path, rel))
		return is || !known, err
	}
	entries, err := fs.ReadDir(d.FS(), rel)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("look for mounts in %s: %w", rel, err)
	}
	for _, e := range entries {
		if some, err := d.mountedAt(filepath.Join(rel, e.Name()), depth-1); some || err != nil {
			return true, err
		}
	}
	return false, nil
}

// isSubPathMount: volume-subpaths/<volume>/<container>/<mount>.
func isSubPathMount(rel string) bool {
	parts := strings.Split(rel, "/")
	return len(parts) == 4 && parts[0] == subPathsDir
}

// isMemoryVolume: volumes/<plugin>/<name> of a plugin that mounts memory.
func isMemoryVolume(rel string) bool {
	parts := strings.Split(rel, "/")
	return len(parts) == 3 && parts[0] == volumesDir && slices.Contains(memoryPlugins(), parts[1])
}

// memoryPlugins are those that mount memory.
func memoryPlugins() []string { return []string{pluginEmptyDir, pluginSecret, pluginProjected} }
