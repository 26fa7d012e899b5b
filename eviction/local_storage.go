package eviction

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/runtime"
)

// exceededLimit returns the limit on local storage that a pod exceeds, "" for none, and the
// message for it. The limits are the sizeLimit of an emptyDir, the
// ephemeral-storage limit of a regular container or sidecar for its writable layer and
// logs, and the sum of the containers' limits for the pod with its volumes and files.
// Measurements older than since do not count. It is pure.
func exceededLimit(pod *corev1.Pod, u *runtime.PodUsage, since time.Time) (limit Signal, message string) {
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		if v.EmptyDir == nil || v.EmptyDir.SizeLimit == nil || v.EmptyDir.SizeLimit.Sign() <= 0 {
			continue
		}
		if used := u.Volumes[v.Name]; current(used.At, since) && exceedsLimit(used.Bytes, *v.EmptyDir.SizeLimit) {
			return EmptyDirFSLimit, fmt.Sprintf("Usage of EmptyDir volume %q exceeds the limit %q. ", v.Name, v.EmptyDir.SizeLimit.String())
		}
	}
	var total uint64
	for i := range u.Containers {
		c := &u.Containers[i]
		used := bytesSince(c.Rootfs, since) + bytesSince(c.Logs, since)
		total += used
		if kind, ok := runtime.ContainerTypeOf(pod, c.Name); !ok || kind == runtime.Init {
			continue // what an init container writes is bound by the limit of the pod alone, as with a kubelet
		}
		bound := runtime.ContainerSpec(pod, c.Name).Resources.Limits[corev1.ResourceEphemeralStorage]
		if bound.Sign() > 0 && exceedsLimit(used, bound) {
			return EphemeralContainerFSLimit, fmt.Sprintf("Container %s exceeded its local ephemeral storage limit %q. ", c.Name, bound.String())
		}
	}
	total += bytesSince(u.ExitedContainers, since) + bytesSince(u.Files, since)
	for _, v := range u.Volumes {
		if !v.Uncounted {
			total += bytesSince(v.DiskUsage, since)
		}
	}
	bound := podspec.LimitSum(pod)[corev1.ResourceEphemeralStorage]
	if bound.Sign() > 0 && exceedsLimit(total, bound) {
		return EphemeralPodFSLimit, fmt.Sprintf("Pod ephemeral local storage usage exceeds the total limit of containers %s. ", bound.String())
	}
	return "", ""
}

// bytesSince returns the usage, or 0 if it is older than since.
func bytesSince(d runtime.DiskUsage, since time.Time) uint64 {
	if !current(d.At, since) {
		return 0
	}
	return d.Bytes
}

func exceedsLimit(n uint64, limit resource.Quantity) bool { return n > uint64(max(limit.Value(), 0)) }
