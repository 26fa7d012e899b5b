package volume

import (
	"path"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/podspec"
)

// nestedMount is where a container mounts another volume in one.
type nestedMount struct {
	path string // relative to the volume
	// file is whether it may be a file that is mounted: it is not known before.
	file bool
}

// nestedMounts returns where containers mount other volumes in one. Containers have the volume
// read-only, so no runtime can make the directories. Of a mount in another one only the outer one is
// returned: the inner one is in what is mounted there.
func nestedMounts(pod *corev1.Pod, volume string) (nested []nestedMount) {
	hostPaths := make(map[string]bool)
	for i := range pod.Spec.Volumes {
		hostPaths[pod.Spec.Volumes[i].Name] = pod.Spec.Volumes[i].HostPath != nil
	}
	for c := range podspec.Containers(pod) {
		for i := range c.VolumeMounts {
			if m := &c.VolumeMounts[i]; m.Name == volume && m.SubPath == "" && m.SubPathExpr == "" {
				nested = append(nested, mountedBelow(c.VolumeMounts, m.MountPath, hostPaths)...)
			}
		}
	}
	slices.SortFunc(nested, func(a, b nestedMount) int { return strings.Compare(a.path, b.path) })
	return slices.Compact(nested)
}

// mountedBelow returns the mounts of a container below a path, relative to it.
func mountedBelow(mounts []corev1.VolumeMount, at string, hostPaths map[string]bool) (outer []nestedMount) {
	prefix := strings.TrimSuffix(path.Clean("/"+at), "/") + "/"
	var all []nestedMount
	for i := range mounts {
		m := &mounts[i]
		rel, ok := strings.CutPrefix(path.Clean("/"+m.MountPath), prefix)
		if ok && rel != "" && !isReserved(rel) {
			all = append(all, nestedMount{path: rel, file: m.SubPath != "" || m.SubPathExpr != "" || hostPaths[m.Name]})
		}
	}
	for _, n := range all {
		if !slices.ContainsFunc(all, func(other nestedMount) bool { return strings.HasPrefix(n.path, other.path+"/") }) {
			outer = append(outer, n)
		}
	}
	return outer
}

// isReserved reports whether a path in a volume begins with a name that a writer gives: there the content is, whatever is mounted.
func isReserved(rel string) bool {
	top, _, _ := strings.Cut(rel, "/")
	stamp, ok := strings.CutPrefix(top, "..")
	return top == dataLink || top == dataLinkNew || ok && strings.IndexAny(stamp, "0123456789") == 0
}

// makeNested makes the directories on which other volumes are mounted. Where a link leads to the
// content, what is there is mounted on.
func (w *writer) makeNested() error {
	for _, n := range w.nested {
		top, _, _ := strings.Cut(n.path, "/")
		if _, err := w.root.Readlink(top); err == nil {
			continue
		}
		if err := w.mkdirs("", n.path+"/"); err != nil {
			return err
		}
	}
	return nil
}

// isHidden reports whether the content of that name is hidden by directories on which others are
// mounted. A mount in the content would last until the content changes.
func (w *writer) isHidden(name string, files payload) bool {
	return slices.ContainsFunc(w.nested, func(n nestedMount) bool {
		if !n.isIn(name) {
			return false
		}
		_, isFile := files[n.path]
		return !n.file || !isFile
	})
}

// isNested reports whether name is a directory on which, or in which, a container may have a
// mount. The kernel would take that mount away with the directory.
func (w *writer) isNested(name string) bool {
	if !slices.ContainsFunc(w.nested, func(n nestedMount) bool { return n.isIn(name) }) {
		return false
	}
	info, err := w.root.Lstat(name)
	return err == nil && info.IsDir()
}

// isIn reports whether the mount is on, or below, what has that name in the volume.
func (n nestedMount) isIn(name string) bool {
	return n.path == name || strings.HasPrefix(n.path, name+"/")
}
