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

// emptyDir makes the volume once: what a container does to it afterwards, also
// to its mode, is the container's business.
func (m *Manager) emptyDir(r *request) (path string, err error) {
	medium := r.vol.EmptyDir.Medium
	if was, ok := m.known.get(r.pod.UID, r.vol.Name); ok && was.isFolder(medium) {
		return was.path, nil
	}
	if r.dir, err = r.open(); err != nil {
		return "", err
	}
	rel := filepath.Join(volumesDir, pluginEmptyDir, r.vol.Name)
	path = filepath.Join(r.dir.path, rel)
	if err := r.dir.ensureDir(filepath.Dir(rel), modeTraverse); err != nil {
		return "", err
	}
	switch medium {
	case corev1.StorageMediumDefault:
		err = m.diskDir(r, rel)
	case corev1.StorageMediumMemory:
		err = m.memoryDir(r, rel)
	default:
		err = fmt.Errorf("emptyDir: medium %s cannot be mounted here", medium)
	}
	if err != nil {
		return "", err
	}
	m.known.put(r.pod.UID, r.vol.Name, mountedVolume{path: path, plugin: pluginEmptyDir, medium: medium, at: time.Now()})
	return path, nil
}

// diskDir makes the folder under another name first: one that has its name is
// wholly made.
func (m *Manager) diskDir(r *request, rel string) error {
	if info, err := r.dir.Lstat(rel); err == nil && info.IsDir() {
		return nil
	} else if err == nil || !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s: is no folder: %w", rel, errors.Join(err, ErrUnsafe))
	}
	// No volume can have a name with a dot.
	fresh := filepath.Join(filepath.Dir(rel), "."+r.vol.Name)
	if err := r.dir.Mkdir(fresh, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	mode := fs.FileMode(0o777)
	if gid := fsGroup(r.pod); gid != nil {
		if err := chgrp(r.dir.Root, fresh, *gid); err != nil {
			return err
		}
		mode |= fs.ModeSetgid
	}
	if err := r.dir.Chmod(fresh, mode); err != nil {
		return err
	}
	return r.dir.Rename(fresh, rel)
}

func (m *Manager) memoryDir(r *request, rel string) error {
	if !m.mount.canMount() {
		return fmt.Errorf("emptyDir with medium Memory: %w", ErrPrivilege)
	}
	if err := r.dir.Mkdir(rel, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	// After the node was started anew the folder is there and its mount is not.
	if is, err := r.dir.isMountPoint(rel); is || err != nil {
		return err
	}
	o := memory{mode: 0o777, gid: fsGroup(r.pod), bytes: m.memoryBytes(r)}
	if o.gid != nil {
		o.mode = 0o2777
	}
	return m.mount.tmpfs(filepath.Join(r.dir.path, rel), o)
}

// memoryBytes is the least of what the volume, the pod's limit and the node
// allow. More could never be used.
func (m *Manager) memoryBytes(r *request) int64 {
	var least int64
	limits := podspec.Limits(r.pod)
	bounds := []int64{limits.Memory().Value(), m.cfg.Allocatable.Memory().Value()}
	if limit := r.vol.EmptyDir.SizeLimit; limit != nil {
		bounds = append(bounds, limit.Value())
	}
	for _, q := range bounds {
		if q > 0 && (least == 0 || q < least) {
			least = q
		}
	}
	return least
}

func fsGroup(pod *corev1.Pod) *int64 {
	if pod.Spec.SecurityContext == nil {
		return nil
	}
	return pod.Spec.SecurityContext.FSGroup
}
