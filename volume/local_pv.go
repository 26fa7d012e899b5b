package volume

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/internal/fsgroup"
	"github.com/sublet-dev/agent/runtime"
)

// sourceLocal is the source of a PersistentVolume that is a directory or a disk of the node.
const sourceLocal = "local"

// applyOnce keeps the files of a mounted volume from being changed a second time, as
// containers may have changed them.
const applyOnce = 100 * 365 * 24 * time.Hour

// local returns the directory or device of a local PersistentVolume, which an administrator
// has made. The files get the fsGroup of the pod, as with the kubelet.
func (m *Manager) local(ctx context.Context, v *DriverVolume) (runtime.Volume, error) {
	path := filepath.Clean(v.PersistentVolume.Spec.Local.Path)
	if !filepath.IsAbs(path) {
		return runtime.Volume{}, fmt.Errorf("local volume: path %q must be absolute", path)
	}
	info, err := os.Stat(path)
	if err != nil {
		return runtime.Volume{}, fmt.Errorf("local volume: %w", err)
	}
	want := corev1.HostPathDirectory
	if v.Block {
		want = corev1.HostPathBlockDev
	}
	if !hasType(info.Mode(), want) {
		return runtime.Volume{}, fmt.Errorf("local volume: %s is not a %s: its mode is %s", path, want, info.Mode())
	}
	group := fsGroup(v.Pod)
	if group == nil || v.Block || v.ReadOnly || m.hasGroup(v, path) {
		return runtime.Volume{HostPath: path, ReadOnly: v.ReadOnly}, nil
	}
	if err := fsgroup.Apply(ctx, path, *group, fsgroup.ChangePolicy(v.Pod)); err != nil {
		return runtime.Volume{}, fmt.Errorf("local volume: %w", err)
	}
	m.cache.put(v.Pod.UID, v.Volume.Name, mountedVolume{path: path, plugin: sourceLocal, gid: group, at: time.Now().Add(applyOnce)})
	return runtime.Volume{HostPath: path}, nil
}

// hasGroup reports whether this process has given the files to the fsGroup of the pod.
func (m *Manager) hasGroup(v *DriverVolume, path string) bool {
	cached, ok := m.cache.get(v.Pod.UID, v.Volume.Name)
	return ok && cached.plugin == sourceLocal && cached.path == path
}
