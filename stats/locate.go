package stats

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/runtime"
)

// ActivePods returns the pods that may have containers. It must not block. A
// podworkers.Evictor implements it.
type ActivePods interface {
	ActivePods() []*corev1.Pod
}

// PodCgroups returns the cgroup of a pod as a path below the root of each hierarchy, with
// a leading slash, or "" while it is unknown. A cgroup.Manager implements it.
type PodCgroups interface {
	PodCgroup(pod *corev1.Pod) string
}

// PodDirs returns the directories of a pod. A podsync.Syncer implements it.
type PodDirs interface {
	// LogDir returns the directory with one log directory per container.
	LogDir(pod *corev1.Pod) (string, error)
	// WrittenFiles returns the files and directories, besides volumes and logs, that the
	// containers of the pod can write to.
	WrittenFiles(pod *corev1.Pod) []string
}

// DriverVolumes has the usage of the volumes that are file systems of their own: those that drivers
// mount, such as CSI drivers, and local PersistentVolumes.
type DriverVolumes interface {
	// VolumeUsage returns the last known usage of volumes of a pod, by their names in the pod.
	// It must not wait for a driver or a server.
	VolumeUsage(uid types.UID) map[string]runtime.FSUsage
}

// LocalVolumes returns the paths of a pod's volumes on the disk or in the memory of the
// node, by their names in the spec. A path need not exist. A volume.Manager implements it.
type LocalVolumes interface {
	LocalVolumePaths(pod *corev1.Pod) map[string]string
}

// ImageFSReporter reports the file systems of images and of writable layers, as the CRI
// call ImageFsInfo does. If containers is empty, both are on one file system. See
// runtime.ImageFSReporter.
type ImageFSReporter interface {
	ImageFS(ctx context.Context) (images, containers []runtime.FSUsage, err error)
}

// Locator finds the cgroup and the directories of each pod, for the functions of
// [Config]. It does no I/O.
type Locator struct {
	Pods    ActivePods   // required
	Cgroups PodCgroups   // Default: memory, CPU time and processes of pods are not measured
	Dirs    PodDirs      // Default: logs of pods are not measured
	Volumes LocalVolumes // Default: volumes of pods are not measured
	// IsTracked reports whether the files of a pod are counted continuously, for example
	// eviction.HasLocalStorageLimit. Default: no pod is tracked.
	IsTracked func(*corev1.Pod) bool
}

// All returns all active pods, for Config.Pods.
func (l Locator) All() []Pod { return l.locate(l.Pods.ActivePods()) }

// Tracked returns the active pods that are tracked, for Config.TrackedPods.
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
		volumes[name] = Volume{Path: path, Uncounted: !slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool {
			return v.Name == name && (v.ConfigMap != nil || v.EmptyDir != nil && v.EmptyDir.Medium == corev1.StorageMediumDefault)
		})}
	}
	return volumes
}

// VolumeUsage implements DriverVolumes, with what Volumes has if that implements it.
func (l Locator) VolumeUsage(uid types.UID) map[string]runtime.FSUsage {
	if v, ok := l.Volumes.(DriverVolumes); ok {
		return v.VolumeUsage(uid)
	}
	return nil
}
