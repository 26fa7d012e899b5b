package embedded

import (
	"context"
	"time"

	"google.golang.org/grpc"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// metric is one container metric under cadvisor's name.
type metric struct {
	name, help string
	kind       v1.MetricType
	value      func(measured) uint64
}

// metrics are all there are; values are whole units, as the CRI has no others.
func metrics() []metric {
	return []metric{
		{"container_cpu_usage_seconds_total", "CPU time used, in seconds.", v1.MetricType_COUNTER, func(m measured) uint64 { return uint64(m.usage.CPU / time.Second) }},
		{"container_memory_working_set_bytes", "Memory in use that cannot be dropped.", v1.MetricType_GAUGE, func(m measured) uint64 { return m.usage.WorkingSet }},
		{"container_memory_rss", "Memory of the processes themselves.", v1.MetricType_GAUGE, func(m measured) uint64 { return m.usage.RSS }},
		{"container_fs_usage_bytes", "Bytes of the writable layer.", v1.MetricType_GAUGE, func(m measured) uint64 { return m.usage.Disk }},
		{"container_processes", "Processes in the container.", v1.MetricType_GAUGE, func(m measured) uint64 { return m.usage.Processes }},
		{"container_start_time_seconds", "Start of the container, in seconds of the epoch.", v1.MetricType_GAUGE, func(m measured) uint64 { return uint64(m.started / int64(time.Second)) }},
	}
}

// ListMetricDescriptors implements the CRI.
func (r *Runtime) ListMetricDescriptors(context.Context, *v1.ListMetricDescriptorsRequest) (*v1.ListMetricDescriptorsResponse, error) {
	resp := &v1.ListMetricDescriptorsResponse{}
	for _, m := range metrics() {
		resp.Descriptors = append(resp.Descriptors, &v1.MetricDescriptor{Name: m.name, Help: m.help, LabelKeys: labelKeys()})
	}
	return resp, nil
}

func labelKeys() []string { return []string{"id", "name", "image"} }

// podMetrics measures every ready pod.
func (r *Runtime) podMetrics() []*v1.PodSandboxMetrics {
	byPod := map[string][]*v1.ContainerMetrics{}
	for _, m := range r.measure(func(c *container) bool { return c.state() == v1.ContainerState_CONTAINER_RUNNING }) {
		cm := &v1.ContainerMetrics{ContainerId: m.c.ID}
		for _, d := range metrics() {
			cm.Metrics = append(cm.Metrics, &v1.Metric{
				Name: d.name, Timestamp: m.at, MetricType: d.kind, Value: num(d.value(m)),
				LabelValues: []string{m.c.ID, m.c.Config.GetMetadata().GetName(), m.c.Config.GetImage().GetImage()},
			})
		}
		byPod[m.c.SandboxID] = append(byPod[m.c.SandboxID], cm)
	}
	sandboxes := r.listSandboxes(&v1.PodSandboxFilter{State: &v1.PodSandboxStateValue{State: v1.PodSandboxState_SANDBOX_READY}})
	out := make([]*v1.PodSandboxMetrics, len(sandboxes))
	for i, s := range sandboxes {
		out[i] = &v1.PodSandboxMetrics{PodSandboxId: s.GetId(), ContainerMetrics: byPod[s.GetId()]}
	}
	return out
}

// ListPodSandboxMetrics implements the CRI.
func (r *Runtime) ListPodSandboxMetrics(context.Context, *v1.ListPodSandboxMetricsRequest) (*v1.ListPodSandboxMetricsResponse, error) {
	return &v1.ListPodSandboxMetricsResponse{PodMetrics: r.podMetrics()}, nil
}

// StreamPodSandboxMetrics implements the CRI.
func (r *Runtime) StreamPodSandboxMetrics(_ *v1.StreamPodSandboxMetricsRequest, to grpc.ServerStreamingServer[v1.StreamPodSandboxMetricsResponse]) error {
	return inBatches(r.podMetrics(), func(part []*v1.PodSandboxMetrics) error {
		return to.Send(&v1.StreamPodSandboxMetricsResponse{PodSandboxMetrics: part})
	})
}
