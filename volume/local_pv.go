package volume

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/internal/diskusage"
	"github.com/sublet-dev/agent/internal/fsgroup"
	"github.com/sublet-dev/agent/internal/logattr"
	"github.com/sublet-dev/agent/runtime"
)

// sourceLocal is the source of a PersistentVolume that is a directory or a disk of the node.
const sourceLocal = "local"

// localForever keeps the entry of a volume in the cache until the pod has ended.
const localForever = 100 * 365 * 24 * time.Hour

// local returns the directory or device of a local PersistentVolume, which an administrator
// has made. A device whose files the pod wants is mounted. The files get the fsGroup of the first pod that has
// it, as with the kubelet.
func (m *Manager) local(ctx context.Context, v *DriverVolume) (runtime.Volume, error) {
	path := filepath.Clean(v.PersistentVolume.Spec.Local.Path)
	if !filepath.IsAbs(path) {
		return runtime.Volume{}, fmt.Errorf("local volume: path %q must be absolute", path)
	}
	info, err := os.Stat(path)
	if err != nil {
		return runtime.Volume{}, fmt.Errorf("local volume: %w", err)
	}
	isDevice := hasType(info.Mode(), corev1.HostPathBlockDev)
	switch {
	case v.Block && !isDevice:
		return runtime.Volume{}, fmt.Errorf("local volume: %s is not a %s: its mode is %s", path, corev1.HostPathBlockDev, info.Mode())
	case v.Block:
	case isDevice:
		var unlock func()
		if path, unlock, err = m.mountLocal(ctx, v, path); err != nil {
			return runtime.Volume{}, fmt.Errorf("local volume: %w", err)
		}
		defer unlock() // when the pod has its mark
	case !info.IsDir():
		return runtime.Volume{}, fmt.Errorf("local volume: %s is neither a %s nor a %s: its mode is %s", path, corev1.HostPathDirectory, corev1.HostPathBlockDev, info.Mode())
	}
	if !v.Block {
		if err := m.setUpLocal(ctx, v, path); err != nil {
			return runtime.Volume{}, fmt.Errorf("local volume: %w", err)
		}
	}
	m.meter.add(v.Pod.UID, v.Volume.Name, path)
	return runtime.Volume{HostPath: path, ReadOnly: v.ReadOnly, SELinuxRelabel: !v.ReadOnly && !v.Block}, nil
}

// localUsage measures a local volume: a directory or a block device.
func localUsage(path string) (runtime.FSUsage, error) {
	if info, err := os.Stat(path); err == nil && hasType(info.Mode(), corev1.HostPathBlockDev) {
		return diskusage.Device(path)
	}
	return diskusage.FileSystem(path)
}

// setUpLocal gives the files at path to the fsGroup of a pod and marks the pod, unless that
// was done, also by a previous process: containers may have changed the files since. The
// mark is made last, so that all is repeated after a crash.
func (m *Manager) setUpLocal(ctx context.Context, v *DriverVolume, path string) error {
	if cached, ok := m.cache.get(v.Pod.UID, v.Volume.Name); ok && cached.plugin == sourceLocal && cached.path == path {
		return nil
	}
	if err := checkElement("name", v.PersistentVolume.Name); err != nil {
		return err
	}
	marked, err := m.hasMark(v.Pod.UID, path)
	if err != nil {
		return err
	}
	if !marked {
		if group := fsGroup(v.Pod); group != nil && !v.ReadOnly {
			// The files may be getting the group of another pod: this one must not start before, and must do it if that fails.
			unlock, err := m.localLocks.lockContext(ctx, path)
			if err != nil {
				return fmt.Errorf("another pod has its group set for %s: %w", path, err)
			}
			defer unlock()
			if err := m.applyLocalGroup(ctx, v, path, *group); err != nil {
				return err
			}
		}
		if err := m.mark(v, path); err != nil {
			return err
		}
	}
	m.cache.put(v.Pod.UID, v.Volume.Name, mountedVolume{path: path, plugin: sourceLocal, at: time.Now().Add(localForever)})
	return nil
}

// applyLocalGroup gives the files at path to a group, unless another pod has them.
func (m *Manager) applyLocalGroup(ctx context.Context, v *DriverVolume, path string, group int64) error {
	log := m.cfg.Logger.With(logattr.Pod(v.Pod), logattr.PodUID(v.Pod.UID), slog.String("volume", v.PersistentVolume.Name))
	shared, err := m.othersHaveMark(v.Pod.UID, path)
	switch {
	case err != nil && fsgroup.IsApplied(path, group):
		log.Warn("volume files left as they are: another pod may have the volume", logattr.Err(err))
		return nil
	case err != nil:
		return fmt.Errorf("another pod may have %s with another group: %w", path, err)
	case !shared:
		startTime := time.Now()
		err := fsgroup.Apply(ctx, path, group, fsgroup.ChangePolicy(v.Pod), log)
		if err == nil || ctx.Err() == nil {
			m.cfg.Hooks.ended(Operation{OperationApplyGroup, v.kind()}, startTime, err)
		}
		return err
	}
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return &os.PathError{Op: "stat", Path: path, Err: err}
	}
	if int64(st.Gid) != group {
		log.Warn("volume already mounted with another group, so it may not be shareable", slog.Int64("group", group), slog.Int64("volumeGroup", int64(st.Gid)))
	}
	return nil
}
