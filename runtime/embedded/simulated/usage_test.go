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

func TestProcessorTime_IsTheAreaBelowTheCurve(t *testing.T) {
	ramp := []CPUPoint{{10 * time.Second, 0}, {20 * time.Second, 1000}, {30 * time.Second, 500}}
	tests := map[string]struct {
		points []CPUPoint
		at     time.Duration
		want   time.Duration
	}{
		"no curve":                  {nil, time.Hour, 0},
		"before the start":          {ramp, -time.Second, 0},
		"before the first point":    {[]CPUPoint{{time.Minute, 500}}, 10 * time.Second, 5 * time.Second},
		"a constant":                {[]CPUPoint{{0, 250}}, time.Minute, 15 * time.Second},
		"nothing yet":               {ramp, 10 * time.Second, 0},
		"half up":                   {ramp, 15 * time.Second, 1250 * time.Millisecond},
		"up":                        {ramp, 20 * time.Second, 5 * time.Second},
		"half down":                 {ramp, 25 * time.Second, 9375 * time.Millisecond},
		"down":                      {ramp, 30 * time.Second, 12500 * time.Millisecond},
		"behind the last point":     {ramp, 40 * time.Second, 17500 * time.Millisecond},
		"more than a duration":      {[]CPUPoint{{0, 1 << 62}}, forever, forever / 2},
		"two points at one instant": {[]CPUPoint{{0, 0}, {10 * time.Second, 0}, {10 * time.Second, 1000}}, 12 * time.Second, 2 * time.Second},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			assert.InDelta(t, tc.want, processorTime(tc.points, tc.at), float64(time.Microsecond))
		})
	}
}

func TestExecutor_ProcessorsFollowTheScript(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, Config{})
		id := g.Start(t, g.RunPod(t, embeddedtest.PodConfig("p", "sim.sublet.dev/cpu: 0s=0,10s=2")), nil)
		time.Sleep(5 * time.Second)
		r, err := g.CRI.ContainerStats(t.Context(), &v1.ContainerStatsRequest{ContainerId: id})
		require.NoError(t, err)
		assert.Equal(t, uint64(1e9), r.GetStats().GetCpu().GetUsageNanoCores().GetValue())
		assert.Equal(t, uint64(2500*time.Millisecond), r.GetStats().GetCpu().GetUsageCoreNanoSeconds().GetValue())
	})
}

func TestUsagePoints_AreInterpolated(t *testing.T) {
	curve := []UsagePoint{{10 * time.Second, 100}, {20 * time.Second, 300}, {20 * time.Second, 50}}
	for after, want := range map[time.Duration]uint64{
		0: 100, 10 * time.Second: 100, 15 * time.Second: 200, 20 * time.Second: 50, time.Hour: 50,
	} {
		assert.Equal(t, want, at(curve, after), after)
	}
	assert.Zero(t, at(nil, time.Second))

	for limit, want := range map[uint64]time.Duration{1: 10 * time.Second, 100: 10 * time.Second, 200: 15 * time.Second, 300: 20 * time.Second} {
		got, ok := reaches(curve, limit)
		assert.True(t, ok)
		assert.Equal(t, want, got, limit)
	}
	_, ok := reaches(curve, 301)
	assert.False(t, ok)
}

func TestParsePoints_RejectsInvalidOnes(t *testing.T) {
	for _, value := range []string{"x", "1x=1", "0s=much", ""} {
		_, err := parseCPU(value)
		require.Error(t, err, value)
		_, err = parseUsage(value)
		require.Error(t, err, value)
	}
}
