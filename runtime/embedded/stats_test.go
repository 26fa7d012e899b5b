package embedded_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
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
