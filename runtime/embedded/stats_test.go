package embedded_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/runtime/embedded"
	"github.com/sublet-dev/agent/runtime/embedded/internal/embeddedtest"
)

// A kubelet works a rate out itself where there is none, and believes a 0.
func TestRuntime_OmitsUnknownRates(t *testing.T) {
	g := newRig(t, embedded.Config{})
	sb := g.RunPod(t, embeddedtest.PodConfig("p"))
	id := g.Start(t, sb, nil)
	r, err := g.CRI.ContainerStats(t.Context(), &v1.ContainerStatsRequest{ContainerId: id})
	require.NoError(t, err)
	assert.NotNil(t, r.GetStats().GetCpu().GetUsageCoreNanoSeconds())
	assert.Nil(t, r.GetStats().GetCpu().GetUsageNanoCores())
	p, err := g.CRI.PodSandboxStats(t.Context(), &v1.PodSandboxStatsRequest{PodSandboxId: sb})
	require.NoError(t, err)
	assert.Nil(t, p.GetStats().GetLinux().GetCpu().GetUsageNanoCores())
}

func TestRuntime_DescribesEveryMetric(t *testing.T) {
	g := newRig(t, embedded.Config{})
	sb := g.RunPod(t, embeddedtest.PodConfig("p"))
	id := g.Start(t, sb, nil)
	d, err := g.CRI.ListMetricDescriptors(t.Context(), &v1.ListMetricDescriptorsRequest{})
	require.NoError(t, err)
	keys := map[string]int{}
	for _, m := range d.GetDescriptors() {
		assert.NotEmpty(t, m.GetHelp())
		assert.NotContains(t, keys, m.GetName(), "described twice")
		keys[m.GetName()] = len(m.GetLabelKeys())
	}
	r, err := g.CRI.ListPodSandboxMetrics(t.Context(), &v1.ListPodSandboxMetricsRequest{})
	require.NoError(t, err)
	require.Len(t, r.GetPodMetrics(), 1)
	assert.Equal(t, sb, r.GetPodMetrics()[0].GetPodSandboxId())
	c := r.GetPodMetrics()[0].GetContainerMetrics()[0]
	assert.Equal(t, id, c.GetContainerId())
	assert.Len(t, c.GetMetrics(), len(keys))
	for _, m := range c.GetMetrics() {
		assert.Len(t, m.GetLabelValues(), keys[m.GetName()], m.GetName())
	}
}

// A resize that is made again and again changes nothing more.
func TestRuntime_UpdatesResources(t *testing.T) {
	g := newRig(t, embedded.Config{})
	id := g.Start(t, g.RunPod(t, embeddedtest.PodConfig("p")), func(cfg *v1.ContainerConfig) {
		cfg.Linux = &v1.LinuxContainerConfig{Resources: &v1.LinuxContainerResources{
			CpuShares: 512, HugepageLimits: []*v1.HugepageLimit{{PageSize: "2MB"}, {PageSize: "1GB"}}, Unified: map[string]string{"memory.high": "1"},
		}}
	})
	limits := []*v1.HugepageLimit{{PageSize: "2MB", Limit: 4 << 20}, {PageSize: "1GB"}}
	for range 3 {
		_, err := g.CRI.UpdateContainerResources(t.Context(), &v1.UpdateContainerResourcesRequest{
			ContainerId: id, Linux: &v1.LinuxContainerResources{MemoryLimitInBytes: 64 << 20, HugepageLimits: limits},
		})
		require.NoError(t, err)
	}
	want := &v1.LinuxContainerResources{CpuShares: 512, MemoryLimitInBytes: 64 << 20, HugepageLimits: limits, Unified: map[string]string{"memory.high": "1"}}
	got := g.Inspect(t, id).GetResources().GetLinux()
	assert.True(t, proto.Equal(want, got), "%v", got)
}
