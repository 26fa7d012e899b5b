package volume

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/internal/safe"
	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/runtime"
)

// Driver mounts volumes of a kind that this package does not: those of CSI drivers (package
// csi), NFS, or of your own storage system. Its methods are called from many goroutines,
// for one pod from one at a time; while one blocks, only its pod waits.
type Driver interface {
	// Sources returns the volume sources that the driver mounts, as the fields of a volume
	// or of a PersistentVolume are called: csi, nfs, iscsi. It is called once.
	Sources() []string
	// Mount mounts a volume for its pod and returns its path on the node. It is called at
	// each sync of the pod, also for a volume that is mounted, and in the first sync of a
	// pod that a previous process has started.
	Mount(ctx context.Context, v DriverVolume) (runtime.Volume, error)
	// Unmount unmounts all volumes of a pod after its containers have ended, also those
	// that a previous process has mounted. It is called for every pod, again after an
	// error, and may know nothing but the UID.
	Unmount(ctx context.Context, uid types.UID) error
}

// UsageReporter is an optional interface of a Driver that knows how full its volumes are.
type UsageReporter interface {
	// VolumeUsage returns the last known usage of volumes of a pod, by their names in the pod.
	// It does not wait for a driver or a server.
	VolumeUsage(uid types.UID) map[string]runtime.FSUsage
}

// VolumeUsage returns the usage of the volumes of a pod that are mounted by drivers, as these know
// it, and of local PersistentVolumes.
func (m *Manager) VolumeUsage(uid types.UID) map[string]runtime.FSUsage {
	all := m.meter.VolumeUsage(uid)
	for _, d := range m.cfg.Drivers {
		if r, ok := d.(UsageReporter); ok {
			_ = safe.Call(m.cfg.Logger, "volume driver", func() error { maps.Copy(all, r.VolumeUsage(uid)); return nil }) // logged
		}
	}
	return all
}

// DriverVolume is a volume of a pod that a Driver mounts. It is read-only.
type DriverVolume struct {
	Pod    *corev1.Pod
	Volume *corev1.Volume // as the pod has it
	// Claim and PersistentVolume are what the volume of the pod leads to; nil if its source
	// is in the pod.
	Claim            *corev1.PersistentVolumeClaim
	PersistentVolume *corev1.PersistentVolume
	// Source is the name of the volume source: one of Driver.Sources.
	Source   string
	ReadOnly bool // no container of the pod may write, also by another volume with the claim
	Block    bool // the path is to be that of a block device
	Objects  podspec.Objects
}

// drivers are the Drivers by the source that they mount.
func (cfg *Config) drivers() (map[string]Driver, error) {
	var errs []error
	out := make(map[string]Driver)
	for _, d := range cfg.Drivers {
		if d == nil {
			errs = append(errs, errors.New("volume: Config.Drivers: nil driver"))
			continue
		}
		for _, source := range d.Sources() {
			if out[source] != nil || slices.Contains(builtInSources(), source) {
				errs = append(errs, fmt.Errorf("volume: Config.Drivers: more than one driver for %s", source))
			}
			out[source] = d
		}
	}
	return out, errors.Join(errs...)
}

// builtInSources returns the sources that need no driver.
func builtInSources() []string {
	return []string{"emptyDir", "hostPath", "configMap", "secret", "downwardAPI", "projected", "image", sourceLocal}
}

// viaDriver mounts a volume whose source is not built in.
func (m *Manager) viaDriver(ctx context.Context, r *request) (runtime.Volume, error) {
	v, err := m.resolve(ctx, r)
	if err != nil {
		return runtime.Volume{}, err
	}
	mounted, err := m.mountResolved(ctx, r, &v)
	if _, readOnly := claimOf(r.pod, r.vol); readOnly {
		mounted.ReadOnly = true
	}
	if v.PersistentVolume != nil && mounted.Group == nil {
		mounted.Group = groupOf(v.PersistentVolume)
	}
	return mounted, err
}

// groupAnnotation is the group that may use a PersistentVolume, given by its administrator.
const groupAnnotation = "pv.beta.kubernetes.io/gid"

// groupOf returns the group that containers need for a volume, nil if there is none. As with the
// kubelet, a value that is no id is ignored.
func groupOf(v *corev1.PersistentVolume) *int64 {
	group, err := strconv.ParseInt(v.Annotations[groupAnnotation], 10, 32)
	if err != nil || group < 0 {
		return nil
	}
	return &group
}

// resolve finds what the driver of a volume has to mount.
func (m *Manager) resolve(ctx context.Context, r *request) (DriverVolume, error) {
	v := DriverVolume{Pod: r.pod, Volume: r.vol, Objects: r.objects, Block: isBlock(r.pod, r.vol.Name)}
	name, readOnly := claimOf(r.pod, r.vol)
	if name != "" {
		claimed, err := m.claimed(ctx, r, name)
		if err != nil {
			return v, err
		}
		v.Claim, v.PersistentVolume = claimed.claim, claimed.volume
		v.ReadOnly = readOnly && !isWritable(r.pod, name)
		v.Source = podspec.VolumeSourceName(v.PersistentVolume.Spec.PersistentVolumeSource)
		if err := checkMode(&v); err != nil {
			return v, err
		}
	} else {
		v.Source = podspec.VolumeSourceName(r.vol.VolumeSource)
	}
	return v, nil
}

// mountResolved mounts a volume, by its driver if it has one.
func (m *Manager) mountResolved(ctx context.Context, r *request, v *DriverVolume) (runtime.Volume, error) {
	switch {
	case v.PersistentVolume != nil && v.Source == sourceLocal:
		r.kind = v.kind()
		return m.local(ctx, v)
	case v.PersistentVolume != nil && v.PersistentVolume.Spec.HostPath != nil:
		r.kind = v.kind()
		h := v.PersistentVolume.Spec.HostPath
		return runtime.Volume{HostPath: filepath.Clean(h.Path), ReadOnly: v.ReadOnly}, hostPath(h)
	}
	d := m.drivers[v.Source]
	if d == nil {
		return runtime.Volume{}, fmt.Errorf("unsupported volume type %s: no driver of this agent mounts it", v.Source)
	}
	r.kind, r.byDriver = v.kind(), true
	var mounted runtime.Volume
	err := safe.Call(m.cfg.Logger, "volume driver", func() (err error) {
		mounted, err = d.Mount(ctx, *v)
		return err
	})
	return mounted, err
}

// unmountDrivers lets every driver unmount what it has for the pod.
func (m *Manager) unmountDrivers(ctx context.Context, uid types.UID) error {
	var errs []error
	for _, d := range m.cfg.Drivers {
		errs = append(errs, safe.Call(m.cfg.Logger, "volume driver", func() error { return d.Unmount(ctx, uid) }))
	}
	return errors.Join(errs...)
}

// isBlock reports whether a container uses the volume as a device.
func isBlock(pod *corev1.Pod, volume string) bool {
	for c := range podspec.Containers(pod) {
		if slices.ContainsFunc(c.VolumeDevices, func(d corev1.VolumeDevice) bool { return d.Name == volume }) {
			return true
		}
	}
	return false
}

// isMounted reports whether a container uses the volume as files.
func isMounted(pod *corev1.Pod, volume string) bool {
	for c := range podspec.Containers(pod) {
		if slices.ContainsFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return m.Name == volume }) {
			return true
		}
	}
	return false
}

// checkMode checks that the volume is used as what it is: a file system or a device.
func checkMode(v *DriverVolume) error {
	mode := v.PersistentVolume.Spec.VolumeMode
	is := mode != nil && *mode == corev1.PersistentVolumeBlock
	switch {
	case is && isMounted(v.Pod, v.Volume.Name):
		return fmt.Errorf("volume %s has volumeMode Block, but a container has it in volumeMounts", v.PersistentVolume.Name)
	case !is && v.Block:
		return fmt.Errorf("volume %s has volumeMode Filesystem, but a container has it in volumeDevices", v.PersistentVolume.Name)
	}
	return nil
}
