package embedded

import (
	"context"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// measured is the measurement of one container.
type measured struct {
	c         *container
	resources *v1.LinuxContainerResources
	running   bool
	usage     Usage
	started   int64
	at        int64
}

// measure measures the containers for which pick returns true. Executors are called
// without the lock.
func (r *Runtime) measure(pick func(*container) bool) []measured {
	r.mu.Lock()
	var ms []measured
	var procs []Process
	for _, c := range r.containers {
		if pick(c) {
			ms = append(ms, measured{c: c, resources: c.resources, started: c.started, running: c.state() == v1.ContainerState_CONTAINER_RUNNING})
			procs = append(procs, c.proc)
		}
	}
	r.mu.Unlock()
	for i, p := range procs {
		if p != nil {
			ms[i].usage = p.Usage()
		}
		ms[i].at = time.Now().UnixNano()
	}
	slices.SortFunc(ms, func(a, b measured) int { return strings.Compare(a.c.ID, b.c.ID) })
	return ms
}

func num(n uint64) *v1.UInt64Value { return &v1.UInt64Value{Value: n} }

// cpu omits an unknown rate: the kubelet then computes it from the counter, and takes 0
// for an idle container.
func (m measured) cpu() *v1.CpuUsage {
	u := &v1.CpuUsage{Timestamp: m.at, UsageCoreNanoSeconds: num(uint64(max(0, m.usage.CPU)))}
	if m.usage.NanoCores > 0 {
		u.UsageNanoCores = num(m.usage.NanoCores)
	}
	return u
}

func (m measured) memory() *v1.MemoryUsage {
	u := &v1.MemoryUsage{
		Timestamp: m.at, WorkingSetBytes: num(m.usage.WorkingSet), UsageBytes: num(m.usage.WorkingSet), RssBytes: num(m.usage.RSS),
		PageFaults: num(0), MajorPageFaults: num(0), AvailableBytes: num(0),
	}
	if limit := uint64(max(0, m.resources.GetMemoryLimitInBytes())); limit > m.usage.WorkingSet {
		u.AvailableBytes = num(limit - m.usage.WorkingSet)
	}
	return u
}

// stats returns the measurement as a CRI message. A container that does not run has no
// CPU and memory usage.
func (m measured) stats(imageDir string) *v1.ContainerStats {
	s := &v1.ContainerStats{
		Attributes: &v1.ContainerAttributes{
			Id: m.c.ID, Metadata: m.c.Config.GetMetadata(), Labels: m.c.Config.GetLabels(), Annotations: m.c.Config.GetAnnotations(),
		},
		WritableLayer: &v1.FilesystemUsage{
			Timestamp: m.at, FsId: &v1.FilesystemIdentifier{Mountpoint: imageDir},
			UsedBytes: num(m.usage.Disk), InodesUsed: num(m.usage.Inodes),
		},
	}
	if m.running {
		s.Cpu, s.Memory = m.cpu(), m.memory()
		s.Swap = &v1.SwapUsage{Timestamp: m.at, SwapUsageBytes: num(0), SwapAvailableBytes: num(0)}
	}
	return s
}

// ContainerStats implements the CRI.
func (r *Runtime) ContainerStats(_ context.Context, req *v1.ContainerStatsRequest) (*v1.ContainerStatsResponse, error) {
	r.mu.Lock()
	c, ok := lookup(r.containers, req.GetContainerId())
	r.mu.Unlock()
	if ok {
		if ms := r.measure(func(o *container) bool { return o == c }); len(ms) == 1 {
			return &v1.ContainerStatsResponse{Stats: ms[0].stats(r.cfg.ImageDir)}, nil
		}
	}
	return nil, noContainer(req.GetContainerId())
}

// containerStats measures the running containers that match f.
func (r *Runtime) containerStats(f *v1.ContainerStatsFilter) []*v1.ContainerStats {
	ms := r.measure(func(c *container) bool {
		return c.state() == v1.ContainerState_CONTAINER_RUNNING && hasID(c.ID, f.GetId()) &&
			hasID(c.SandboxID, f.GetPodSandboxId()) && hasLabels(c.Config.GetLabels(), f.GetLabelSelector())
	})
	out := make([]*v1.ContainerStats, len(ms))
	for i, m := range ms {
		out[i] = m.stats(r.cfg.ImageDir)
	}
	return out
}

// ListContainerStats implements the CRI.
func (r *Runtime) ListContainerStats(_ context.Context, req *v1.ListContainerStatsRequest) (*v1.ListContainerStatsResponse, error) {
	return &v1.ListContainerStatsResponse{Stats: r.containerStats(req.GetFilter())}, nil
}

// StreamContainerStats implements the CRI.
func (r *Runtime) StreamContainerStats(req *v1.StreamContainerStatsRequest, to grpc.ServerStreamingServer[v1.StreamContainerStatsResponse]) error {
	return inBatches(r.containerStats(req.GetFilter()), func(part []*v1.ContainerStats) error {
		return to.Send(&v1.StreamContainerStatsResponse{ContainerStats: part})
	})
}

// podStats measures the ready sandboxes that match f.
func (r *Runtime) podStats(f *v1.PodSandboxStatsFilter) []*v1.PodSandboxStats {
	sandboxes := r.listSandboxes(&v1.PodSandboxFilter{
		Id: f.GetId(), LabelSelector: f.GetLabelSelector(),
		State: &v1.PodSandboxStateValue{State: v1.PodSandboxState_SANDBOX_READY},
	})
	byPod := make(map[string][]measured, len(sandboxes))
	for _, s := range sandboxes {
		byPod[s.GetId()] = nil
	}
	for _, m := range r.measure(func(c *container) bool {
		_, ok := byPod[c.SandboxID]
		return ok && c.state() == v1.ContainerState_CONTAINER_RUNNING
	}) {
		byPod[m.c.SandboxID] = append(byPod[m.c.SandboxID], m)
	}
	out := make([]*v1.PodSandboxStats, len(sandboxes))
	for i, s := range sandboxes {
		out[i] = sumPod(s, byPod[s.GetId()], r.cfg.ImageDir)
	}
	return out
}

// sumPod returns the sum of the containers of one pod.
func sumPod(s *podItem, ms []measured, imageDir string) *v1.PodSandboxStats {
	total := measured{at: time.Now().UnixNano()}
	linux := &v1.LinuxPodSandboxStats{}
	for _, m := range ms {
		linux.Containers = append(linux.Containers, m.stats(imageDir))
		total.usage.CPU += m.usage.CPU
		total.usage.NanoCores += m.usage.NanoCores
		total.usage.WorkingSet += m.usage.WorkingSet
		total.usage.RSS += m.usage.RSS
		total.usage.Processes += m.usage.Processes
		total.usage.RxBytes += m.usage.RxBytes
		total.usage.TxBytes += m.usage.TxBytes
	}
	linux.Cpu, linux.Memory = total.cpu(), total.memory()
	linux.Process = &v1.ProcessUsage{Timestamp: total.at, ProcessCount: num(total.usage.Processes)}
	linux.Network = &v1.NetworkUsage{Timestamp: total.at, DefaultInterface: &v1.NetworkInterfaceUsage{
		Name: "eth0", RxBytes: num(total.usage.RxBytes), TxBytes: num(total.usage.TxBytes), RxErrors: num(0), TxErrors: num(0),
	}}
	return &v1.PodSandboxStats{
		Attributes: &v1.PodSandboxAttributes{
			Id: s.GetId(), Metadata: s.GetMetadata(), Labels: s.GetLabels(), Annotations: s.GetAnnotations(),
		},
		Linux: linux,
	}
}

// PodSandboxStats implements the CRI.
func (r *Runtime) PodSandboxStats(_ context.Context, req *v1.PodSandboxStatsRequest) (*v1.PodSandboxStatsResponse, error) {
	r.mu.Lock()
	s, ok := lookup(r.sandboxes, req.GetPodSandboxId())
	var item *podItem
	if ok {
		item = s.item
	}
	r.mu.Unlock()
	if !ok {
		return nil, noSandbox(req.GetPodSandboxId())
	}
	ms := r.measure(func(c *container) bool {
		return c.sandbox == s && c.state() == v1.ContainerState_CONTAINER_RUNNING
	})
	return &v1.PodSandboxStatsResponse{Stats: sumPod(item, ms, r.cfg.ImageDir)}, nil
}

// ListPodSandboxStats implements the CRI.
func (r *Runtime) ListPodSandboxStats(_ context.Context, req *v1.ListPodSandboxStatsRequest) (*v1.ListPodSandboxStatsResponse, error) {
	return &v1.ListPodSandboxStatsResponse{Stats: r.podStats(req.GetFilter())}, nil
}

// StreamPodSandboxStats implements the CRI.
func (r *Runtime) StreamPodSandboxStats(req *v1.StreamPodSandboxStatsRequest, to grpc.ServerStreamingServer[v1.StreamPodSandboxStatsResponse]) error {
	return inBatches(r.podStats(req.GetFilter()), func(part []*v1.PodSandboxStats) error {
		return to.Send(&v1.StreamPodSandboxStatsResponse{PodSandboxStats: part})
	})
}
