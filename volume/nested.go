package volume

import (
	"path"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/podspec"
)

// nestedDirs returns the directories in a volume on which containers mount other volumes,
// relative to it. Containers have the volume read-only, so no runtime can make them. Of a
// directory in another one only the outer one is returned: the inner one is in what is
// mounted there.
func nestedDirs(pod *corev1.Pod, volume string) (dirs []string) {
	for c := range podspec.Containers(pod) {
		for i := range c.VolumeMounts {
			if m := &c.VolumeMounts[i]; m.Name == volume && m.SubPath == "" && m.SubPathExpr == "" {
				dirs = append(dirs, mountedBelow(c.VolumeMounts, m.MountPath)...)
			}
		}
	}
	slices.Sort(dirs)
	return slices.Compact(dirs)
}

// mountedBelow returns where mounts of a container are below a path, relative to it.
func mountedBelow(mounts []corev1.VolumeMount, at string) (outer []string) {
	prefix := strings.TrimSuffix(path.Clean("/"+at), "/") + "/"
	var all []string
	for i := range mounts {
		rel, ok := strings.CutPrefix(path.Clean("/"+mounts[i].MountPath), prefix)
		if ok && rel != "" && !strings.HasPrefix(rel, "..") { // these names are reserved for the content
			all = append(all, rel)
		}
	}
	for _, rel := range all {
		if !slices.ContainsFunc(all, func(other string) bool { return strings.HasPrefix(rel, other+"/") }) {
			outer = append(outer, rel)
		}
	}
	return outer
}

// makeNested makes the directories on which other volumes are mounted. Where the content has a
// file or directory of that name, this is what they are mounted on, or in.
func (w *writer) makeNested(files payload) error {
	names := tops(files)
	for _, dir := range w.nested {
		if top, _, _ := strings.Cut(dir, "/"); names[top] {
			continue
		}
		if err := w.mkdirs("", dir+"/"); err != nil {
			return err
		}
	}
	return nil
}

// isNested reports whether name is a directory on which, or in which, a container may have a
// mount. The kernel would take that mount away with the directory.
func (w *writer) isNested(name string) bool {
	if !slices.ContainsFunc(w.nested, func(dir string) bool { return dir == name || strings.HasPrefix(dir, name+"/") }) {
		return false
	}
	info, err := w.root.Lstat(name)
	return err == nil && info.IsDir()
}
