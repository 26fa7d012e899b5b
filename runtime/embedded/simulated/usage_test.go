package simulated

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/runtime/embedded/internal/embeddedtest"
)

func TestExecutor_UsageFollowsTheScript(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, Config{})
		id := g.Start(t, g.RunPod(t, embeddedtest.PodConfig("p", "sim.sublet.dev/memory: 0s=0,10s=1000", "sim.sublet.dev/disk: 5", "sim.sublet.dev/cpu: 500m")), func(c *v1.ContainerConfig) {
			c.Linux = &v1.LinuxContainerConfig{Resources: &v1.LinuxContainerResources{MemoryLimitInBytes: 2000}}
		})
		time.Sleep(4 * time.Second)
		r, err := g.CRI.ContainerStats(t.Context(), &v1.ContainerStatsRequest{ContainerId: id})
		require.NoError(t, err)
		s := r.GetStats()
		assert.Equal(t, uint64(400), s.GetMemory().GetWorkingSetBytes().GetValue())
		assert.Equal(t, uint64(1600), s.GetMemory().GetAvailableBytes().GetValue())
		assert.Equal(t, uint64(5), s.GetWritableLayer().GetUsedBytes().GetValue())
		assert.Equal(t, uint64(2*time.Second), s.GetCpu().GetUsageCoreNanoSeconds().GetValue())
		assert.Equal(t, uint64(5e8), s.GetCpu().GetUsageNanoCores().GetValue())
		assert.Equal(t, time.Now().UnixNano(), s.GetCpu().GetTimestamp())

		_, err = g.CRI.UpdateContainerResources(t.Context(), &v1.UpdateContainerResourcesRequest{
			ContainerId: id, Linux: &v1.LinuxContainerResources{MemoryLimitInBytes: 300},
		})
		require.NoError(t, err)
		synctest.Wait()
		assert.Equal(t, "OOMKilled", g.Inspect(t, id).GetReason(), "a limit below the use kills")
	})
}
