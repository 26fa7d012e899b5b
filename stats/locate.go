package stats

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/runtime"
)

// ActivePods returns the pods that may have containers. It must not block.
type ActivePods interface {
	ActivePods() []*corev1.Pod
}

// PodCgroups names the cgroup of a pod, below the root of each hierarchy and with a
// leading slash, or returns "" while it is unknown.
type PodCgroups interface {
	PodCgroup(pod *corev1.Pod) string
}

// PodDirs knows the directory of a pod's logs, and the files and directories besides
// volumes that its containers can write to.
type PodDirs interface {
	LogDir(pod *corev1.Pod) (string, error)
	WrittenFiles(pod *corev1.Pod) []string
}

// LocalVolumes returns the paths of a pod's volumes on the disk or in the memory of the
// node, by their name in the spec. A path need not exist.
type LocalVolumes interface {
	LocalVolumePaths(pod *corev1.Pod) map[string]string
}

// ImageFSReporter knows the file systems of images and of writable layers. Without a
// second one the layers are with the images.
type ImageFSReporter interface {
	ImageFS(ctx context.Context) (images, containers []runtime.FSUsage, err error)
}

// Locator finds where the usage of pods is measured, for [Config]. Pods is required;
// what is known only through a field that is nil is not measured. It does no I/O.
type Locator struct {
	Pods    ActivePods
	Cgroups PodCgroups   // a cgroup.Manager, for example
	Dirs    PodDirs      // a podsync.Syncer, for example
	Volumes LocalVolumes // a volume.Manager, for example
	// IsTracked reports whether the files of a pod are counted continuously. See
	// eviction.HasLocalStorageLimit. Default: no pod is tracked.
	IsTracked func(*corev1.Pod) bool
}

// All returns all active pods, for Config.Pods.
func (l Locator) All() []Pod { return l.locate(l.Pods.ActivePods()) }

// Tracked returns the tracked ones among the active pods, for Config.TrackedPods.
func (l Locator) Tracked() []Pod {
	if l.IsTracked == nil {
		return nil
	}
	return l.locate(slices.DeleteFunc(slices.Clone(l.Pods.ActivePods()), func(pod *corev1.Pod) bool { return !l.IsTracked(pod) }))
}

func (l Locator) locate(active []*corev1.Pod) []Pod {
	pods := make([]Pod, 0, len(active))
	for _, pod := range active {
		p := Pod{Pod: pod, TrackDiskUsage: l.IsTracked != nil && l.IsTracked(pod)}
		if l.Cgroups != nil {
			p.Cgroup = l.Cgroups.PodCgroup(pod)
		}
		if l.Dirs != nil {
			if dir, err := l.Dirs.LogDir(pod); err == nil {
				p.LogDir = dir
			}
			p.Files = l.Dirs.WrittenFiles(pod)
		}
		if l.Volumes != nil {
			p.Volumes = volumesOf(pod, l.Volumes.LocalVolumePaths(pod))
		}
		pods = append(pods, p)
	}
	return pods
}

func volumesOf(pod *corev1.Pod, paths map[string]string) map[string]Volume {
	volumes := make(map[string]Volume, len(paths))
	for name, path := range paths {
		volumes[name] = Volume{Path: path, InMemory: slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool {
			return v.Name == name && v.EmptyDir != nil && v.EmptyDir.Medium == corev1.StorageMediumMemory
		})}
	}
	return volumes
}
