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
	if swap := s.GetSwap(); swap.GetSwapUsageBytes() != nil {
		out.Swap = runtime.SwapUsage{At: at(swap.GetTimestamp()), Usage: swap.GetSwapUsageBytes().GetValue()}
		if left := swap.GetSwapAvailableBytes(); left != nil && left.GetValue() < unlimited {
			out.Swap.Limit, out.Swap.HasLimit = out.Swap.Usage+left.GetValue(), true
		}
	}
	out.CPUPressure = pressure(cpu.GetTimestamp(), cpu.GetPsi())
	out.MemoryPressure = pressure(mem.GetTimestamp(), mem.GetPsi())
	out.IOPressure = pressure(s.GetIo().GetTimestamp(), s.GetIo().GetPsi())
	if layer.GetUsedBytes() != nil {
		out.Rootfs = runtime.DiskUsage{
			At: at(layer.GetTimestamp()), Bytes: layer.GetUsedBytes().GetValue(), Inodes: layer.GetInodesUsed().GetValue(),
		}
	}
	return out
}

// unlimited is the number of bytes from which on there is no limit, as for the kubelet.
const unlimited = 1 << 62

// pressure returns a pressure, which is unknown if psi is nil. The totals of the CRI are in ns.
func pressure(timestamp int64, psi *v1.PsiStats) runtime.PSIStats {
	if psi == nil {
		return runtime.PSIStats{}
	}
	return runtime.PSIStats{At: at(timestamp), Some: pressureOf(psi.GetSome()), Full: pressureOf(psi.GetFull())}
}

func pressureOf(d *v1.PsiData) runtime.PSIData {
	return runtime.PSIData{Avg10: d.GetAvg10(), Avg60: d.GetAvg60(), Avg300: d.GetAvg300(), Total: d.GetTotal() / 1000}
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
