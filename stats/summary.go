package stats

import (
	"context"
	"maps"
	"math"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/runtime"
)

// Summary reports disk usage that is at most summaryAge old. It waits summaryWait for a new
// count of files; a longer one continues in the background for the next call.
const (
	summaryAge  = time.Minute
	summaryWait = 2 * time.Second
)

// Summary measures the node and its pods, with swap, network, pressure and system containers,
// which [Provider.Usage] leaves out. It blocks for a few seconds at most. The disk usage of logs and
// volumes is about a minute old at most, and left out until a long count has ended. Run must
// have been called. Start times of pods and containers come from the statuses in pods.
func (p *Provider) Summary(ctx context.Context, nodeName string, pods []*corev1.Pod) (Summary, error) {
	counting, cancel := context.WithTimeout(ctx, summaryWait)
	p.RefreshDiskUsage(counting, time.Now().Add(-summaryAge))
	cancel()
	measured := p.cfg.Pods()
	u, incomplete, err := p.usage(ctx, measured, time.Time{})
	if err != nil {
		return Summary{}, err
	}
	s := p.summarize(nodeName, &u, incomplete, measured, pods, everything)
	if incomplete == nil { // a runtime that hangs is not asked a second time
		p.addImageUsage(ctx, &s)
	}
	p.addVolumeFileSystems(&s)
	if p.cfg.DriverVolumes != nil {
		addDriverVolumes(&s, pods, p.cfg.DriverVolumes)
	}
	return s, nil
}

// VolumeSummary returns a Summary of the volumes that drivers mount for pods, and of nothing else. It asks no runtime: a
// scrape of the usage of claims does not wait for it.
func VolumeSummary(pods []*corev1.Pod, volumes DriverVolumes) Summary {
	s := Summary{Pods: make([]PodStats, 0, len(pods))}
	for _, pod := range pods {
		s.Pods = append(s.Pods, PodStats{PodRef: PodReference{Name: pod.Name, Namespace: pod.Namespace, UID: string(pod.UID)}})
	}
	addDriverVolumes(&s, pods, volumes)
	return s
}

// addDriverVolumes adds the usage of volumes that drivers mount. It does not count as
// ephemeral storage: the volumes are not on the disk of the node.
func addDriverVolumes(s *Summary, pods []*corev1.Pod, volumes DriverVolumes) {
	byUID := make(map[types.UID]*corev1.Pod, len(pods))
	for _, pod := range pods {
		byUID[pod.UID] = pod
	}
	for i := range s.Pods {
		pod := &s.Pods[i]
		uid := types.UID(pod.PodRef.UID)
		usage := volumes.VolumeUsage(uid)
		if len(usage) == 0 {
			continue
		}
		claims := claimsOf(byUID[uid])
		for _, name := range slices.Sorted(maps.Keys(usage)) {
			if fs := fsStats(usage[name]); fs != nil {
				pod.VolumeStats = append(pod.VolumeStats, VolumeStats{FSStats: *fs, Name: name, PVCRef: claims[name]})
			}
		}
	}
}

// claimsOf returns the claims of a pod, which may be nil, by the names of its volumes.
func claimsOf(pod *corev1.Pod) map[string]*PVCReference {
	claims := map[string]*PVCReference{}
	if pod == nil {
		return claims
	}
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		switch {
		case v.PersistentVolumeClaim != nil:
			claims[v.Name] = &PVCReference{Name: v.PersistentVolumeClaim.ClaimName, Namespace: pod.Namespace}
		case v.Ephemeral != nil:
			claims[v.Name] = &PVCReference{Name: pod.Name + "-" + v.Name, Namespace: pod.Namespace}
		}
	}
	return claims
}

// Summarize converts a measurement to a Summary. bootTime is the start time of the node;
// those of pods and containers come from the statuses in pods. CPU, memory and swap of a pod that
// are not known are the sums of its containers. Volumes that are Uncounted have only
// what is used of them, because u does not have their file systems, and the file systems of the
// runtime have all but what it uses of them. Exited containers are left out; what their files use
// counts as ephemeral storage of the pod. Of pods with one name, those with running containers
// are there, or the one that was started last. It is pure. The result shares values with u.
func Summarize(nodeName string, bootTime time.Time, u *runtime.NodeUsage, pods []*corev1.Pod) Summary {
	s := Summary{
		Node: NodeStats{
			NodeName: nodeName, StartTime: metav1.NewTime(bootTime),
			CPU: cpuStats(u.CPU, u.CPUPressure), Memory: memoryStats(u.Memory, u.MemoryPressure),
			FS: fsStats(u.NodeFS), IO: ioStats(u.IOPressure), Network: networkStats(&u.Network), Swap: swapStats(&u.Swap),
		},
		Pods: make([]PodStats, 0, len(u.Pods)),
	}
	if images, layers := unusedStats(u.ImageFS), unusedStats(u.ContainerFS); images != nil || layers != nil {
		s.Node.Runtime = &RuntimeStats{ImageFS: images, ContainerFS: layers}
	}
	if !u.Pids.At.IsZero() {
		limit, used := int64(min(u.Pids.Max, 1<<62)), int64(min(u.Pids.Used, 1<<62))
		s.Node.Rlimit = &RlimitStats{Time: metav1.NewTime(u.Pids.At), MaxPID: &limit, NumOfRunningProcesses: &used}
	}
	byUID := make(map[types.UID]*corev1.Pod, len(pods))
	for _, pod := range pods {
		byUID[pod.UID] = pod
	}
	for i := range u.Pods {
		s.Pods = append(s.Pods, podStats(u, &u.Pods[i], byUID[u.Pods[i].UID]))
	}
	s.Pods = withoutReplaced(s.Pods)
	return s
}

// withoutReplaced removes pods without running containers if there is a newer one with the same
// name, or one that has some.
func withoutReplaced(pods []PodStats) []PodStats {
	type name struct{ namespace, name string }
	best := make(map[name]int, len(pods))
	for i := range pods {
		p := &pods[i]
		key := name{p.PodRef.Namespace, p.PodRef.Name}
		if at, ok := best[key]; !ok || replaces(p, &pods[at]) {
			best[key] = i
		}
	}
	if len(best) == len(pods) {
		return pods
	}
	kept := pods[:0]
	for i := range pods {
		p := &pods[i]
		if len(p.Containers) > 0 || best[name{p.PodRef.Namespace, p.PodRef.Name}] == i {
			kept = append(kept, *p)
		}
	}
	return kept
}

// replaces reports whether a pod is to be reported rather than another one with its name.
func replaces(p, other *PodStats) bool {
	if runs := len(p.Containers) > 0; runs != (len(other.Containers) > 0) {
		return runs
	}
	return !p.StartTime.Before(&other.StartTime)
}

func podStats(node *runtime.NodeUsage, measured *runtime.PodUsage, pod *corev1.Pod) PodStats {
	total := *measured
	u := &total
	addContainerTotals(u)
	s := PodStats{
		PodRef:     PodReference{Name: u.Name, Namespace: u.Namespace, UID: string(u.UID)},
		Containers: make([]ContainerStats, 0, len(u.Containers)),
		CPU:        cpuStats(u.CPU, u.CPUPressure), Memory: memoryStats(u.Memory, u.MemoryPressure),
		IO: ioStats(u.IOPressure), Network: networkStats(&u.Network), Swap: swapStats(&u.Swap),
	}
	if pod != nil && pod.Status.StartTime != nil {
		s.StartTime = *pod.Status.StartTime
	}
	if !u.Pids.At.IsZero() {
		s.ProcessStats = &ProcessStats{ProcessCount: &u.Pids.Used}
	}
	var disk runtime.DiskUsage
	add := func(d runtime.DiskUsage) {
		switch {
		case d.At.IsZero(), d.Partial:
		case disk.At.IsZero():
			disk = d
		default:
			disk = disk.Add(d)
		}
	}
	for i := range u.Containers {
		c := &u.Containers[i]
		add(c.Rootfs)
		add(c.Logs)
		start := startOf(pod, c.Name)
		if !c.Running && start.IsZero() {
			continue
		}
		cpu := cpuStats(c.CPU, c.CPUPressure)
		if t := c.Throttling; cpu != nil && !t.At.IsZero() {
			cpu.Throttling = &ThrottlingStats{metav1.NewTime(t.At), t.Quota, t.Period, t.Periods, t.ThrottledPeriods, t.ThrottledNanoSeconds}
		}
		s.Containers = append(s.Containers, ContainerStats{
			Name: c.Name, StartTime: start, BlockIO: blockIOStats(&c.BlockIO),
			CPU: cpu, Memory: memoryStats(c.Memory, c.MemoryPressure), IO: ioStats(c.IOPressure),
			Rootfs: diskStats(c.Rootfs, node.ContainerFS), Logs: diskStats(c.Logs, node.NodeFS), Swap: swapStats(&c.Swap),
		})
	}
	for _, name := range slices.Sorted(maps.Keys(u.Volumes)) {
		v, in := u.Volumes[name], node.NodeFS
		if v.Uncounted {
			in = runtime.FSUsage{} // it may have its own
		} else {
			add(v.DiskUsage)
		}
		if fs := diskStats(v.DiskUsage, in); fs != nil {
			s.VolumeStats = append(s.VolumeStats, VolumeStats{FSStats: *fs, Name: name})
		}
	}
	add(u.ExitedContainers)
	add(u.Files)
	s.EphemeralStorage = diskStats(disk, node.NodeFS)
	return s
}

// startOf returns the start time of a running container from the status of its pod.
func startOf(pod *corev1.Pod, name string) metav1.Time {
	if pod == nil {
		return metav1.Time{}
	}
	for _, list := range [][]corev1.ContainerStatus{pod.Status.ContainerStatuses, pod.Status.InitContainerStatuses, pod.Status.EphemeralContainerStatuses} {
		for i := range list {
			if list[i].Name == name && list[i].State.Running != nil {
				return list[i].State.Running.StartedAt
			}
		}
	}
	return metav1.Time{}
}

func cpuStats(c runtime.CPUUsage, p runtime.PSIStats) *CPUStats {
	if c.At.IsZero() {
		return nil
	}
	s := &CPUStats{Time: metav1.NewTime(c.At), UsageCoreNanoSeconds: &c.UsageCoreNanoSeconds, PSI: psiStats(p)}
	if c.HasRate {
		s.UsageNanoCores = &c.UsageNanoCores
	}
	return s
}

func memoryStats(m runtime.MemoryUsage, p runtime.PSIStats) *MemoryStats {
	if m.At.IsZero() {
		return nil
	}
	s := &MemoryStats{
		Time: metav1.NewTime(m.At), UsageBytes: &m.Usage, WorkingSetBytes: &m.WorkingSet,
		RSSBytes: &m.RSS, PageFaults: &m.PageFaults, MajorPageFaults: &m.MajorFaults, PSI: psiStats(p),
	}
	if m.HasCache {
		s.CacheBytes = &m.Cache
	}
	if m.Capacity > 0 {
		left := m.Available()
		s.AvailableBytes = &left
	}
	return s
}

// blockIOStats returns what was read and written, or nil if it is unknown.
func blockIOStats(u *runtime.BlockIOUsage) *BlockIOStats {
	if u.At.IsZero() {
		return nil
	}
	s := &BlockIOStats{Time: metav1.NewTime(u.At), Devices: make([]BlockDeviceStats, 0, len(u.Devices))}
	for _, d := range u.Devices {
		s.Devices = append(s.Devices, BlockDeviceStats(d))
	}
	return s
}

// swapStats returns the usage of swap space, or nil if it is unknown.
func swapStats(u *runtime.SwapUsage) *SwapStats {
	if u.At.IsZero() {
		return nil
	}
	s := &SwapStats{Time: metav1.NewTime(u.At), SwapUsageBytes: &u.Usage}
	if u.HasLimit {
		left := u.Available()
		s.SwapAvailableBytes = &left
	}
	return s
}

// networkStats returns the usage of a network, or nil if it is unknown.
func networkStats(u *runtime.NetworkUsage) *NetworkStats {
	if u.At.IsZero() {
		return nil
	}
	s := &NetworkStats{Time: metav1.NewTime(u.At)}
	for i := range u.Interfaces {
		n := &u.Interfaces[i]
		one := InterfaceStats{
			Name: n.Name, RxBytes: &n.RxBytes, RxErrors: &n.RxErrors, TxBytes: &n.TxBytes, TxErrors: &n.TxErrors,
			RxPackets: &n.RxPackets, RxDropped: &n.RxDropped, TxPackets: &n.TxPackets, TxDropped: &n.TxDropped,
		}
		if n.Name == defaultInterface {
			s.InterfaceStats = one
		}
		s.Interfaces = append(s.Interfaces, one)
	}
	return s
}

// ioStats returns the pressure on disks, or nil if it is unknown.
func ioStats(p runtime.PSIStats) *IOStats {
	if psi := psiStats(p); psi != nil {
		return &IOStats{Time: metav1.NewTime(p.At), PSI: psi}
	}
	return nil
}

// psiStats returns a pressure, or nil if it is unknown. JSON has no form for some numbers that
// a runtime can report.
func psiStats(p runtime.PSIStats) *PSIStats {
	if p.At.IsZero() || !isFinite(p.Some) || !isFinite(p.Full) {
		return nil
	}
	return &PSIStats{Full: dataOf(p.Full), Some: dataOf(p.Some)}
}

func isFinite(p runtime.PSIData) bool {
	sum := p.Avg10 + p.Avg60 + p.Avg300
	return !math.IsNaN(sum) && !math.IsInf(sum, 0)
}

func dataOf(s runtime.PSIData) PSIData {
	return PSIData{Total: s.Total, Avg10: s.Avg10, Avg60: s.Avg60, Avg300: s.Avg300}
}

// fsStats returns the usage of a file system, or nil if it is unknown.
func fsStats(fs runtime.FSUsage) *FSStats {
	if fs.At.IsZero() {
		return nil
	}
	free := fs.Inodes - min(fs.InodesUsed, fs.Inodes)
	return &FSStats{
		Time: metav1.NewTime(fs.At), AvailableBytes: &fs.AvailableBytes, CapacityBytes: &fs.CapacityBytes,
		UsedBytes: &fs.UsedBytes, InodesFree: &free, Inodes: &fs.Inodes, InodesUsed: &fs.InodesUsed,
	}
}

// diskStats returns the usage of files on the file system fs, or nil if it is not known
// completely.
func diskStats(d runtime.DiskUsage, fs runtime.FSUsage) *FSStats {
	if d.At.IsZero() || d.Partial {
		return nil
	}
	s := fsStats(fs)
	if s == nil {
		s = &FSStats{}
	}
	s.Time, s.UsedBytes, s.InodesUsed = metav1.NewTime(d.At), &d.Bytes, &d.Inodes
	return s
}
