package embedded

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func TestSimulated_UsageFollowsTheScript(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, Config{})
		id := g.start(t, g.run(t, podConfig("p", "sim.sublet.dev/memory: 0s=0,10s=1000", "sim.sublet.dev/disk: 5", "sim.sublet.dev/cpu: 500m")), func(c *v1.ContainerConfig) {
			c.Linux = &v1.LinuxContainerConfig{Resources: &v1.LinuxContainerResources{MemoryLimitInBytes: 2000}}
		})
		time.Sleep(4 * time.Second)
		r, err := g.rs.ContainerStats(t.Context(), &v1.ContainerStatsRequest{ContainerId: id})
		require.NoError(t, err)
		s := r.GetStats()
		assert.Equal(t, uint64(400), s.GetMemory().GetWorkingSetBytes().GetValue())
		assert.Equal(t, uint64(1600), s.GetMemory().GetAvailableBytes().GetValue())
		assert.Equal(t, uint64(5), s.GetWritableLayer().GetUsedBytes().GetValue())
		assert.Equal(t, uint64(2*time.Second), s.GetCpu().GetUsageCoreNanoSeconds().GetValue())
		assert.Equal(t, uint64(5e8), s.GetCpu().GetUsageNanoCores().GetValue())
		assert.Equal(t, time.Now().UnixNano(), s.GetCpu().GetTimestamp())

		_, err = g.rs.UpdateContainerResources(t.Context(), &v1.UpdateContainerResourcesRequest{
			ContainerId: id, Linux: &v1.LinuxContainerResources{MemoryLimitInBytes: 300},
		})
		require.NoError(t, err)
		synctest.Wait()
		assert.Equal(t, "OOMKilled", g.status(t, id).GetReason(), "a limit below the use kills")
	})
}

// A kubelet works a rate out itself where there is none, and believes a 0.
func TestRuntime_OmitsUnknownRates(t *testing.T) {
	g := newRig(t, Config{})
	sb := g.run(t, podConfig("p"))
	id := g.start(t, sb, nil)
	r, err := g.rs.ContainerStats(t.Context(), &v1.ContainerStatsRequest{ContainerId: id})
	require.NoError(t, err)
	assert.NotNil(t, r.GetStats().GetCpu().GetUsageCoreNanoSeconds())
	assert.Nil(t, r.GetStats().GetCpu().GetUsageNanoCores())
	p, err := g.rs.PodSandboxStats(t.Context(), &v1.PodSandboxStatsRequest{PodSandboxId: sb})
	require.NoError(t, err)
	assert.Nil(t, p.GetStats().GetLinux().GetCpu().GetUsageNanoCores())
}

func TestRuntime_DescribesEveryMetric(t *testing.T) {
	g := newRig(t, Config{})
	sb := g.run(t, podConfig("p"))
	id := g.start(t, sb, nil)
	d, err := g.rs.ListMetricDescriptors(t.Context(), &v1.ListMetricDescriptorsRequest{})
	require.NoError(t, err)
	keys := map[string]int{}
	for _, m := range d.GetDescriptors() {
		assert.NotEmpty(t, m.GetHelp())
		assert.NotContains(t, keys, m.GetName(), "described twice")
		keys[m.GetName()] = len(m.GetLabelKeys())
	}
	r, err := g.rs.ListPodSandboxMetrics(t.Context(), &v1.ListPodSandboxMetricsRequest{})
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
