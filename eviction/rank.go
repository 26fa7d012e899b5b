package eviction

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/runtime"
)

// Candidate is a pod that can be evicted for a signal, with what it is ranked by.
type Candidate struct {
	Pod            *corev1.Pod
	Usage, Request uint64
	Priority       int32
	Critical       bool // ranked after all others
	// Stalled means that Usage is the share of time in which the pod's own tasks
	// waited in the last 10s, in hundredths of a percent.
	Stalled bool
}

// ExceedsRequest reports whether the pod uses more than it requests.
func (c Candidate) ExceedsRequest() bool { return c.Usage > c.Request }

// Rank returns the pods that can be evicted for a signal, in the order of eviction:
// pods that are not critical first, then those above their request, then those of
// lower priority, then those further above their request. Pods whose usage was not
// measured at or after since are left out. For memory and I/O pressure, usage is the
// time for which the pod's own tasks waited. Where that is unknown for all pods, memory
// pressure is ranked by memory usage, and I/O pressure has no candidates. It is pure.
func Rank(signal Signal, pods []*corev1.Pod, u *runtime.NodeUsage, since time.Time) []Candidate {
	f, ok := infoFor(signal)
	if !ok {
		return nil
	}
	usage := make(map[types.UID]*runtime.PodUsage, len(u.Pods))
	for i := range u.Pods {
		usage[u.Pods[i].UID] = &u.Pods[i]
	}
	layout, stalled := layoutOf(u), ranksByStall(f, u)
	var out []Candidate
	for _, pod := range pods {
		pu := usage[pod.UID]
		if pu == nil {
			continue
		}
		c := Candidate{Pod: pod, Priority: podspec.Priority(pod), Critical: podspec.IsCritical(pod), Stalled: stalled}
		var known bool
		if stalled {
			c.Usage, known = stallOf(f, pu, since)
		} else {
			c.Usage, known = usageOf(signal, f, pu, layout, since)
			c.Request = requestOf(f.resource, pod)
		}
		if known {
			out = append(out, c)
		}
	}
	slices.SortFunc(out, compare)
	return out
}

// compare orders candidates for eviction. The UID makes the order total.
func compare(a, b Candidate) int {
	return cmp.Or(
		boolOrder(!a.Critical, !b.Critical),
		boolOrder(a.ExceedsRequest(), b.ExceedsRequest()),
		cmp.Compare(a.Priority, b.Priority),
		cmp.Compare(b.excess(), a.excess()),
		cmp.Compare(a.Pod.UID, b.Pod.UID),
	)
}

// excess returns usage minus request.
func (c Candidate) excess() int64 {
	return int64(min(c.Usage, 1<<62)) - int64(min(c.Request, 1<<62))
}

// usageText describes the usage of the pod for messages.
func (c Candidate) usageText() string {
	if c.Stalled {
		return fmt.Sprintf("waited %.2f%% of the time", float64(c.Usage)/100)
	}
	return fmt.Sprintf("used %d of %d requested", c.Usage, c.Request)
}

// ranksByStall reports whether pods are ranked by the time for which their own tasks
// wait. For CPU they are not, because a pod that waits is not the one that uses it.
func ranksByStall(f signalInfo, u *runtime.NodeUsage) bool {
	switch {
	case f.podStall == nil:
		return false
	case f.resource == corev1.ResourceEphemeralStorage:
		return true
	}
	return slices.ContainsFunc(u.Pods, func(p runtime.PodUsage) bool {
		_, at := f.podStall(&p)
		return !at.IsZero()
	})
}

// stallOf returns the share of time for which the pod's tasks wait, in hundredths of a
// percent, and whether it was measured at or after since.
func stallOf(f signalInfo, u *runtime.PodUsage, since time.Time) (uint64, bool) {
	s, at := f.podStall(u)
	return uint64(max(s.Avg10, 0) * 100), current(at, since)
}

// requestOf returns the pod's request for a resource. Inodes and process ids cannot be
// requested.
func requestOf(name corev1.ResourceName, pod *corev1.Pod) uint64 {
	if name == resourceInodes || name == resourcePids {
		return 0
	}
	q := podspec.Requests(pod)[name]
	if name == corev1.ResourceCPU {
		return uint64(max(q.MilliValue(), 0))
	}
	return uint64(max(q.Value(), 0))
}

// usageOf returns the pod's usage of the signal's resource, and whether it was measured
// at or after since.
func usageOf(s Signal, f signalInfo, u *runtime.PodUsage, l layout, since time.Time) (uint64, bool) {
	switch f.resource {
	case corev1.ResourceMemory:
		m, known := podMemory(u, since)
		return m, known
	case resourcePids:
		return u.Pids.Used, current(u.Pids.At, since)
	case corev1.ResourceCPU:
		return u.CPU.UsageNanoCores / 1e6, current(u.CPU.At, since) && u.CPU.HasRate
	case resourceInodes:
		d := podDisk(s, u, l, since)
		return d.Inodes, !d.At.IsZero()
	default:
		d := podDisk(s, u, l, since)
		return d.Bytes, !d.At.IsZero()
	}
}

// current reports whether a measurement exists and is not older than since.
func current(at, since time.Time) bool { return !at.IsZero() && !at.Before(since) }

// podMemory returns the working set of the pod's cgroup or, if that is unknown, the sum
// of those of its containers.
func podMemory(u *runtime.PodUsage, since time.Time) (bytes uint64, known bool) {
	if current(u.Memory.At, since) {
		return u.Memory.WorkingSet, true
	}
	for i := range u.Containers {
		if m := &u.Containers[i].Memory; current(m.At, since) {
			bytes, known = bytes+m.WorkingSet, true
		}
	}
	return bytes, known
}

// layout records which of a node's file systems are the same.
type layout struct {
	writableOnNode  bool // writable layers are on the node's file system
	writableOnImage bool // writable layers are on the image file system
}

// layoutOf returns the layout. File systems are the same unless reported as different.
func layoutOf(u *runtime.NodeUsage) layout {
	containers := u.ContainerFS
	if containers.At.IsZero() {
		containers = u.ImageFS
	}
	return layout{
		writableOnNode:  sameFS(containers, u.NodeFS),
		writableOnImage: sameFS(containers, u.ImageFS),
	}
}

func sameFS(a, b runtime.FSUsage) bool {
	switch {
	case a.At.IsZero() || b.At.IsZero():
		return true
	case a.Device != 0 && b.Device != 0:
		return a.Device == b.Device
	default:
		return a.Mountpoint == b.Mountpoint
	}
}

// mayHaveImages reports whether the removal of images may free space on the file system of a
// signal. It does not only if that is known to be another one, which does not share its space with
// that of the images: what is available on both then differs.
func mayHaveImages(s Signal, u *runtime.NodeUsage) bool {
	var fs runtime.FSUsage
	switch s {
	case NodeFSAvailable, NodeFSInodesFree:
		fs = u.NodeFS
	case ContainerFSAvailable, ContainerFSInodesFree:
		fs = u.ContainerFS
	default:
		fs = u.ImageFS
	}
	a, b := fs.AvailableBytes, u.ImageFS.AvailableBytes
	return sameFS(fs, u.ImageFS) || max(a, b)-min(a, b) <= max(fs.CapacityBytes, u.ImageFS.CapacityBytes)/100
}

// podDisk returns the pod's usage of the signal's file system. Parts that were not
// measured at or after since are left out, so that the result is never too high. Its
// time is zero if no part was measured.
func podDisk(s Signal, u *runtime.PodUsage, l layout, since time.Time) runtime.DiskUsage {
	var writable, local bool
	switch s {
	case ImageFSAvailable, ImageFSInodesFree:
		writable, local = l.writableOnImage, l.writableOnImage && l.writableOnNode
	case ContainerFSAvailable, ContainerFSInodesFree:
		writable, local = true, l.writableOnNode
	default:
		writable, local = l.writableOnNode, true
	}
	var sum runtime.DiskUsage
	add := func(d runtime.DiskUsage) {
		switch {
		case !current(d.At, since):
		case sum.At.IsZero():
			sum = d
		default:
			sum = sum.Add(d)
		}
	}
	for i := range u.Containers {
		if writable {
			add(u.Containers[i].Rootfs)
		}
		if local {
			add(u.Containers[i].Logs)
		}
	}
	if local {
		for _, v := range u.Volumes {
			if !v.Uncounted {
				add(v.DiskUsage)
			}
		}
		add(u.Files)
	}
	if writable {
		add(u.ExitedContainers)
	}
	return sum
}

// isStale reports whether the usage of a pod on the signal's file system has a part that
// was last measured before since. It is pure.
func isStale(s Signal, pods []*corev1.Pod, u *runtime.NodeUsage, since time.Time) bool {
	if !isDisk(s) {
		return false
	}
	included := make(map[types.UID]bool, len(pods))
	for _, pod := range pods {
		included[pod.UID] = true
	}
	layout := layoutOf(u)
	for i := range u.Pods {
		if !included[u.Pods[i].UID] {
			continue
		}
		// The time of the sum is that of its oldest part.
		if all := podDisk(s, &u.Pods[i], layout, time.Time{}); !all.At.IsZero() && all.At.Before(since) {
			return true
		}
	}
	return false
}
