package translate

import (
	"k8s.io/apimachinery/pkg/types"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/runtime"
)

// ContainerUsage returns the measurements of a container of the pod uid. What the runtime
// did not measure has no time.
func ContainerUsage(uid types.UID, s *v1.ContainerStats) runtime.ContainerUsage {
	mem, cpu, layer := s.GetMemory(), s.GetCpu(), s.GetWritableLayer()
	out := runtime.ContainerUsage{
		PodUID: uid, ID: s.GetAttributes().GetId(), Name: s.GetAttributes().GetMetadata().GetName(),
		// Only a running container has processes to account for.
		Running: cpu.GetUsageCoreNanoSeconds() != nil || mem.GetWorkingSetBytes() != nil,
		Memory: runtime.MemoryUsage{
			Usage: mem.GetUsageBytes().GetValue(), WorkingSet: mem.GetWorkingSetBytes().GetValue(), RSS: mem.GetRssBytes().GetValue(),
			PageFaults: mem.GetPageFaults().GetValue(), MajorFaults: mem.GetMajorPageFaults().GetValue(),
		},
		CPU: runtime.CPUUsage{UsageCoreNanoSeconds: cpu.GetUsageCoreNanoSeconds().GetValue(), UsageNanoCores: cpu.GetUsageNanoCores().GetValue(), HasRate: cpu.GetUsageNanoCores() != nil},
	}
	if mem.GetWorkingSetBytes() != nil {
		out.Memory.At = at(mem.GetTimestamp())
		if left := mem.GetAvailableBytes(); left != nil {
			out.Memory.Capacity = out.Memory.WorkingSet + left.GetValue()
		}
	}
	if cpu.GetUsageCoreNanoSeconds() != nil {
		out.CPU.At = at(cpu.GetTimestamp())
	}
	if layer.GetUsedBytes() != nil {
		out.Rootfs = runtime.DiskUsage{
			At: at(layer.GetTimestamp()), Bytes: layer.GetUsedBytes().GetValue(), Inodes: layer.GetInodesUsed().GetValue(),
		}
	}
	return out
}

// FSUsages returns the measurements of file systems.
func FSUsages(all []*v1.FilesystemUsage) []runtime.FSUsage {
	out := make([]runtime.FSUsage, 0, len(all))
	for _, u := range all {
		out = append(out, runtime.FSUsage{
			At: at(u.GetTimestamp()), Mountpoint: u.GetFsId().GetMountpoint(),
			UsedBytes: u.GetUsedBytes().GetValue(), InodesUsed: u.GetInodesUsed().GetValue(),
		})
	}
	return out
}
