package cri

import (
	"context"
	"errors"

	"k8s.io/apimachinery/pkg/types"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/runtime"
)

// ContainerStats measures all containers of the owner's pods. A runtime may
// leave out those that have ended. A figure that it does not know has no time.
func (c *Client) ContainerStats(ctx context.Context) ([]runtime.ContainerUsage, error) {
	stats, err := c.listStats(ctx)
	if err != nil {
		return nil, err
	}
	out := make([]runtime.ContainerUsage, 0, len(stats))
	o := c.claims()
	for _, s := range stats {
		labels := s.GetAttributes().GetLabels()
		known := func() bool { return c.owned.has(s.GetAttributes().GetId()) }
		if uid := labels[runtime.LabelPodUID]; uid != "" && o.container(labels, known) {
			out = append(out, usageOf(types.UID(uid), s))
		}
	}
	return out, nil
}

func (c *Client) listStats(ctx context.Context) ([]*v1.ContainerStats, error) {
	filter := &v1.ContainerStatsFilter{}
	if !c.noStatsStream.Load() {
		all, err := collect(ctx, c, "StreamContainerStats", &c.noStatsStream, c.rs.StreamContainerStats,
			&v1.StreamContainerStatsRequest{Filter: filter}, (*v1.StreamContainerStatsResponse).GetContainerStats)
		if !errors.Is(err, runtime.ErrUnsupported) {
			return all, err
		}
	}
	resp, err := do(ctx, c, "ListContainerStats", "", c.cfg.Timeout, c.rs.ListContainerStats,
		&v1.ListContainerStatsRequest{Filter: filter})
	return resp.GetStats(), err
}

func usageOf(uid types.UID, s *v1.ContainerStats) runtime.ContainerUsage {
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
