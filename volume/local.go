package volume

import (
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
)

// LocalVolumePaths returns the paths of the volumes with files of the node's, by name: emptyDirs,
// ConfigMaps, Secrets, downwardAPI and projected volumes. It does no I/O; a path may not exist.
func (m *Manager) LocalVolumePaths(pod *corev1.Pod) map[string]string {
	if checkElement("uid", string(pod.UID)) != nil {
		return nil
	}
	out := make(map[string]string)
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		plugin := contentPlugin(v)
		if v.EmptyDir != nil {
			plugin = pluginEmptyDir
		}
		if plugin != "" && checkElement("name", v.Name) == nil {
			out[v.Name] = filepath.Join(m.cfg.Root, "pods", string(pod.UID), volumesDir, plugin, v.Name)
		}
	}
	return out
}
