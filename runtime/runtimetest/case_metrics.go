package runtimetest

import (
	"time"

	"google.golang.org/grpc/codes"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// limited sets resources that every kubelet sets for a container with limits.
func limited(cfg *v1.ContainerConfig) {
	r := cfg.Linux.Resources
	r.CpuPeriod, r.CpuQuota, r.CpuShares = 100_000, 50_000, 512
	r.MemoryLimitInBytes = 64 << 20
}

func podStatsCases() []testCase {
	return []testCase{
		{"a pod's measurement is that of its containers", "the summary API would have no containers; eviction would pick the wrong pod", 0, func(c *CaseT) {
			p := c.pod("p")
			id := p.start("c", longRunTime, annotate(map[string]string{"sim.sublet.dev/memory": "1Mi", "sim.sublet.dev/cpu": "10m"}))
			var linux *v1.LinuxPodSandboxStats
			for deadline := c.streamDeadline(); ; c.wait(200 * time.Millisecond) {
				r, err := c.rs.PodSandboxStats(c.ctx, &v1.PodSandboxStatsRequest{PodSandboxId: p.id})
				c.implemented(err, "PodSandboxStats")
				linux = r.GetStats().GetLinux()
				if linux.GetCpu().GetUsageCoreNanoSeconds() != nil && linux.GetMemory().GetWorkingSetBytes() != nil || time.Now().After(deadline) {
					break
				}
			}
			c.check(linux.GetCpu().GetUsageCoreNanoSeconds() != nil, "linux.cpu.usage_core_nano_seconds is missing from the measurement of the pod")
			c.check(linux.GetMemory().GetWorkingSetBytes() != nil, "linux.memory.working_set_bytes is missing from the measurement of the pod")
			c.check(linux.GetNetwork() != nil, "linux.network is missing from the measurement of the pod")
			c.check(linux.GetProcess().GetProcessCount() != nil, "linux.process.process_count is missing from the measurement of the pod")
			var got []string
			for _, s := range linux.GetContainers() {
				got = append(got, s.GetAttributes().GetId())
			}
			set(c, []string{id}, got, "linux.containers of the measurement")
		}},
		{"metrics of pods are described", "the metrics of cadvisor would be missing or have the wrong labels", 0, func(c *CaseT) {
			p := c.pod("p")
			id := p.start("c", longRunTime)
			descriptors, err := c.rs.ListMetricDescriptors(c.ctx, &v1.ListMetricDescriptorsRequest{})
			c.implemented(err, "ListMetricDescriptors")
			keys := map[string]int{}
			for _, d := range descriptors.GetDescriptors() {
				keys[d.GetName()] = len(d.GetLabelKeys())
				c.check(d.GetHelp() != "", "the descriptor of %s has no help", d.GetName())
			}
			list, err := c.rs.ListPodSandboxMetrics(c.ctx, &v1.ListPodSandboxMetricsRequest{})
			c.implemented(err, "ListPodSandboxMetrics")
			if len(descriptors.GetDescriptors())+len(list.GetPodMetrics()) == 0 {
				c.skipped("the runtime has no metrics")
			}
			found, container := false, false
			for _, m := range list.GetPodMetrics() {
				found = found || m.GetPodSandboxId() == p.id
				c.described(keys, m.GetMetrics())
				for _, cm := range m.GetContainerMetrics() {
					container = container || cm.GetContainerId() == id
					c.described(keys, cm.GetMetrics())
				}
			}
			c.check(found, "there are no metrics of the pod")
			c.check(container, "there are no metrics of the container")
		}},
		{"streamed metrics are the listed metrics", "a big node could not be measured", alone, func(c *CaseT) {
			c.pod("p").start("c", longRunTime)
			c.streamsTheList("streamed metrics", func() (all []string) {
				list, err := c.rs.ListPodSandboxMetrics(c.ctx, &v1.ListPodSandboxMetricsRequest{})
				c.implemented(err, "ListPodSandboxMetrics")
				for _, m := range list.GetPodMetrics() {
					all = append(all, m.GetPodSandboxId())
				}
				return all
			}, func() (got []string) {
				s, err := c.rs.StreamPodSandboxMetrics(c.ctx, &v1.StreamPodSandboxMetricsRequest{})
				drain(c, s, err, "StreamPodSandboxMetrics", func(r *v1.StreamPodSandboxMetricsResponse) {
					c.hasItems(len(r.GetPodSandboxMetrics()), "StreamPodSandboxMetrics")
					for _, m := range r.GetPodSandboxMetrics() {
						got = append(got, m.GetPodSandboxId())
					}
				})
				return got
			})
		}},
	}
}

// described expects metrics to agree with their descriptors, given as numbers of labels.
func (c *CaseT) described(keys map[string]int, metrics []*v1.Metric) {
	for _, m := range metrics {
		n, ok := keys[m.GetName()]
		if !ok {
			c.fatal("metric %q has no descriptor", m.GetName())
		}
		if n != len(m.GetLabelValues()) {
			c.fatal("metric %s has %d label_values for the %d label_keys of its descriptor", m.GetName(), len(m.GetLabelValues()), n)
		}
		age := time.Since(time.Unix(0, m.GetTimestamp()))
		if m.GetTimestamp() != 0 && (age < -time.Minute || age > time.Hour) { // 0 is a live metric
			c.fatal("metric %s is %s old; its timestamp is %d, want 0 or nanoseconds since 1970", m.GetName(), age.Round(time.Second), m.GetTimestamp())
		}
		if m.GetValue() == nil {
			c.fatal("metric %s has no value", m.GetName())
		}
	}
}

func updateCases() []testCase {
	return []testCase{
		{"a change of one resource leaves the others", "a resize of memory would lift the CPU limit", 0, func(c *CaseT) {
			id := c.pod("p").start("c", longRunTime, limited)
			_, err := c.rs.UpdateContainerResources(c.ctx, &v1.UpdateContainerResourcesRequest{
				ContainerId: id, Linux: &v1.LinuxContainerResources{MemoryLimitInBytes: 128 << 20},
				Annotations: map[string]string{"sublet.dev/update": "1"},
			})
			c.ok(err, "update resources")
			r := c.status(id).GetResources().GetLinux()
			same(c, 128<<20, r.GetMemoryLimitInBytes(), "memory_limit_in_bytes in the status")
			same(c, 50_000, r.GetCpuQuota(), "cpu_quota in the status")
			same(c, 512, r.GetCpuShares(), "cpu_shares in the status")
		}},
		{"the resources of a pod can be changed", "a pod could not be resized in place as a whole", 0, func(c *CaseT) {
			p := c.pod("p")
			update := func(id string) error {
				_, err := c.rs.UpdatePodSandboxResources(c.ctx, &v1.UpdatePodSandboxResourcesRequest{
					PodSandboxId: id, Overhead: &v1.LinuxContainerResources{}, Resources: &v1.LinuxContainerResources{CpuShares: 256, MemoryLimitInBytes: 64 << 20},
				})
				return err
			}
			c.implemented(update(p.id), "update resources of pod")
			same(c, ready, p.status().GetState(), "state of the pod")
			c.rejected(update(unknownID), "update of an unknown pod", codes.NotFound)
		}},
		{"the runtime takes the node's pod CIDR", "the node would stay without a network plugin that waits for it", 0, func(c *CaseT) {
			// A range would reconfigure the network of the node.
			_, err := c.rs.UpdateRuntimeConfig(c.ctx, &v1.UpdateRuntimeConfigRequest{RuntimeConfig: &v1.RuntimeConfig{NetworkConfig: &v1.NetworkConfig{}}})
			c.implemented(err, "update the runtime's configuration")
		}},
	}
}

func streamFilterCases() []testCase {
	return []testCase{
		{"streams of lists heed their filters", "each inspection of a pod would read the whole node", 0, func(c *CaseT) {
			a, b := c.pod("a"), c.pod("b")
			x := a.start("x", longRunTime)
			b.start("x", longRunTime)
			var got []string
			pods, err := c.rs.StreamPodSandboxes(c.ctx, &v1.StreamPodSandboxesRequest{Filter: &v1.PodSandboxFilter{Id: a.id}})
			drain(c, pods, err, "StreamPodSandboxes", func(r *v1.StreamPodSandboxesResponse) {
				for _, p := range r.GetPodSandboxes() {
					got = append(got, p.GetId())
				}
			})
			set(c, []string{a.id}, got, "StreamPodSandboxes by id")
			got = nil
			containers, err := c.rs.StreamContainers(c.ctx, &v1.StreamContainersRequest{Filter: &v1.ContainerFilter{PodSandboxId: a.id}})
			drain(c, containers, err, "StreamContainers", func(r *v1.StreamContainersResponse) { got = append(got, ids(r.GetContainers())...) })
			set(c, []string{x}, got, "StreamContainers by pod")
			c.streamedStats(a, x)
		}},
		{"a stream of images heeds its filter", "each query of one image would read all", 0, func(c *CaseT) {
			var got []string
			images, err := c.is.StreamImages(c.ctx, &v1.StreamImagesRequest{Filter: &v1.ImageFilter{Image: &v1.ImageSpec{Image: "example.invalid/no/such/image:1"}}})
			drain(c, images, err, "StreamImages", func(r *v1.StreamImagesResponse) {
				for _, i := range r.GetImages() {
					got = append(got, i.GetId())
				}
			})
			set(c, nil, got, "StreamImages by name of an image that is not there")
		}},
	}
}

// streamedStats expects the streams of measurements to heed their filters; x is the
// only container of pod a.
func (c *CaseT) streamedStats(a *pod, x string) {
	var got []string
	containers, err := c.rs.StreamContainerStats(c.ctx, &v1.StreamContainerStatsRequest{Filter: &v1.ContainerStatsFilter{PodSandboxId: a.id}})
	drain(c, containers, err, "StreamContainerStats", func(r *v1.StreamContainerStatsResponse) {
		for _, s := range r.GetContainerStats() {
			got = append(got, s.GetAttributes().GetId())
		}
	})
	set(c, []string{x}, got, "StreamContainerStats by pod")
	got = nil
	pods, err := c.rs.StreamPodSandboxStats(c.ctx, &v1.StreamPodSandboxStatsRequest{Filter: &v1.PodSandboxStatsFilter{Id: a.id}})
	drain(c, pods, err, "StreamPodSandboxStats", func(r *v1.StreamPodSandboxStatsResponse) {
		for _, s := range r.GetPodSandboxStats() {
			got = append(got, s.GetAttributes().GetId())
		}
	})
	set(c, []string{a.id}, got, "StreamPodSandboxStats by id")
}
