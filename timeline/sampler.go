package timeline

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/runtime"
)

// Sampler adds a sample of the node, and its conditions, to a History every ten seconds.
type Sampler struct {
	History *History      // required
	Usage   UsageProvider // required
	// Capacity has the CPUs of the node. Default: unknown
	Capacity corev1.ResourceList
	// Conditions returns those of the node. Default: only those that eviction reports when
	// they change
	Conditions func() []corev1.NodeCondition
}

// UsageProvider measures the node without its pods. *stats.Provider is one.
type UsageProvider interface {
	NodeUsage(ctx context.Context) (runtime.NodeUsage, error)
}

// Run samples until ctx is done. What cannot be measured is left out.
func (s Sampler) Run(ctx context.Context) error {
	ticker := time.NewTicker(samplePeriod)
	defer ticker.Stop()
	var previous runtime.CPUUsage
	for {
		if u, err := s.Usage.NodeUsage(ctx); err == nil {
			s.History.AddSample(s.sample(&u, previous))
			previous = u.CPU
		}
		if s.Conditions != nil {
			s.History.conditionsChanged(s.Conditions())
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// sample converts a measurement. The rate of the CPU is that since the previous sample:
// others measure as well, and theirs is over another time.
func (s Sampler) sample(u *runtime.NodeUsage, previous runtime.CPUUsage) Sample {
	out := Sample{
		At: time.Now(), Memory: u.Memory.WorkingSet, MemoryCapacity: u.Memory.Capacity, Pids: u.Pids.Used, PidsMax: u.Pids.Max,
		NodeFS: u.NodeFS.UsedBytes, NodeFSCapacity: u.NodeFS.CapacityBytes, ImageFS: u.ImageFS.UsedBytes, ImageFSSize: u.ImageFS.CapacityBytes,
		MemoryPressure: u.MemoryPressure.Some.Avg60, IOPressure: u.IOPressure.Some.Avg60, CPUPressure: u.CPUPressure.Some.Avg60,
	}
	if took := u.CPU.At.Sub(previous.At); !previous.At.IsZero() && took > 0 && u.CPU.UsageCoreNanoSeconds >= previous.UsageCoreNanoSeconds {
		out.MilliCPU = uint64(float64(u.CPU.UsageCoreNanoSeconds-previous.UsageCoreNanoSeconds) / float64(took) * 1000)
		out.MilliCPUs = uint64(max(s.Capacity.Cpu().MilliValue(), 0))
	}
	return out
}
