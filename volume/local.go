package volume

import (
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
)

// LocalVolumePaths returns where the volumes of the pod are that take up room of the node
// and count as the pod's own, by name: emptyDirs and the files of ConfigMaps. It
// looks at nothing: they may not be there yet, or no more.
func (m *Manager) LocalVolumePaths(pod *corev1.Pod) map[string]string {
	if element("uid", string(pod.UID)) != nil {
		return nil
	}
	out := make(map[string]string)
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		plugin := ""
		switch {
		case v.EmptyDir != nil:
			plugin = pluginEmptyDir
		case v.ConfigMap != nil:
			plugin = pluginConfigMap
		}
		if plugin != "" && element("name", v.Name) == nil {
			out[v.Name] = filepath.Join(m.cfg.Root, "pods", string(pod.UID), volumesDir, plugin, v.Name)
		}
	}
	return out
}
