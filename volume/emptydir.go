package volume

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/podspec"
)

// emptyDir creates the volume. An existing one is left as it is, because containers may
// change its content and mode.
func (m *Manager) emptyDir(r *request) (path string, err error) {
	medium := r.vol.EmptyDir.Medium
	if cached, ok := m.cache.get(r.pod.UID, r.vol.Name); ok && cached.exists(medium) {
		return cached.path, nil
	}
	if r.dir, err = r.open(); err != nil {
		return "", err
	}
	rel := filepath.Join(volumesDir, pluginEmptyDir, r.vol.Name)
	path = filepath.Join(r.dir.path, rel)
	if err := r.dir.ensureDir(filepath.Dir(rel), modeTraverse); err != nil {
		return "", err
	}
	switch {
	case medium == corev1.StorageMediumDefault:
		err = m.diskDir(r, rel)
	case medium == corev1.StorageMediumMemory:
		err = m.memoryDir(r, rel)
	case podspec.IsHugePageMedium(medium):
		err = m.hugePagesDir(r, rel)
	default:
		err = fmt.Errorf("emptyDir: unsupported medium %s", medium)
	}
	if err != nil {
		return "", err
	}
	m.cache.put(r.pod.UID, r.vol.Name, mountedVolume{path: path, plugin: pluginEmptyDir, medium: medium, at: time.Now()})
	return path, nil
}

// diskDir creates the directory under a temporary name and renames it, so that a
// directory with the final name is complete.
func (m *Manager) diskDir(r *request, rel string) error {
	if info, err := r.dir.Lstat(rel); err == nil && info.IsDir() {
		return nil
	} else if err == nil || !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s: not a directory: %w", rel, errors.Join(err, ErrUnsafe))
	}
	// The name of a volume cannot contain a dot.
	temp := filepath.Join(filepath.Dir(rel), "."+r.vol.Name)
	if err := r.dir.Mkdir(temp, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	mode := fs.FileMode(0o777)
	if gid := fsGroup(r.pod); gid != nil {
		if err := chgrp(r.dir.Root, temp, *gid); err != nil {
			return err
		}
		mode |= fs.ModeSetgid
	}
	if err := r.dir.Chmod(temp, mode); err != nil {
		return err
	}
	return r.dir.Rename(temp, rel)
}

func (m *Manager) memoryDir(r *request, rel string) error {
	if !m.mount.canMount() {
		return fmt.Errorf("emptyDir with medium Memory: %w", ErrPrivilege)
	}
	if err := r.dir.Mkdir(rel, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	// After a restart of the node the directory exists without its mount.
	if is, err := r.dir.isMountPoint(rel); is || err != nil {
		return err
	}
	// As of every tmpfs: users delete only their own files. Directories of subPaths inherit it.
	o := tmpfsOptions{mode: 0o1777, gid: fsGroup(r.pod), bytes: m.memoryBytes(r)}
	if o.gid != nil {
		o.mode = 0o3777
	}
	return m.mount.tmpfs(filepath.Join(r.dir.path, rel), o)
}

// memoryBytes returns the smallest of the size limit of the volume, the memory limit of
// the pod and the allocatable memory of the node, or 0 if there is none.
func (m *Manager) memoryBytes(r *request) int64 {
	var smallest int64
	limits := podspec.Limits(r.pod)
	bounds := []int64{limits.Memory().Value(), m.cfg.Allocatable.Memory().Value()}
	if limit := r.vol.EmptyDir.SizeLimit; limit != nil {
		bounds = append(bounds, limit.Value())
	}
	for _, q := range bounds {
		if q > 0 && (smallest == 0 || q < smallest) {
			smallest = q
		}
	}
	return smallest
}

func fsGroup(pod *corev1.Pod) *int64 {
	if pod.Spec.SecurityContext == nil {
		return nil
	}
	return pod.Spec.SecurityContext.FSGroup
}
