package prom_test

import (
	"errors"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sublet-dev/agent/prom"
	"github.com/sublet-dev/agent/stats"
)

// The names, labels and values are those of a kubelet. Only claims count, each once.
func TestRegisterVolumes(t *testing.T) {
	fs := func(n uint64) stats.FSStats {
		return stats.FSStats{
			CapacityBytes: new(n + 1), AvailableBytes: new(n + 2), UsedBytes: new(n + 3), Inodes: new(n + 4), InodesFree: new(n + 5), InodesUsed: new(n + 6),
		}
	}
	data := &stats.PVCReference{Namespace: "default", Name: "data"}
	summary := stats.Summary{Pods: []stats.PodStats{
		{VolumeStats: []stats.VolumeStats{{FSStats: fs(10), Name: "v", PVCRef: data}, {FSStats: fs(20), Name: "scratch"}}},
		{VolumeStats: []stats.VolumeStats{{FSStats: fs(10), Name: "same", PVCRef: &stats.PVCReference{Namespace: "default", Name: "data"}}}},
		{VolumeStats: []stats.VolumeStats{{FSStats: stats.FSStats{UsedBytes: new(uint64(7))}, Name: "v", PVCRef: &stats.PVCReference{Namespace: "other", Name: "data"}}}},
	}}
	var err error
	reg := prometheus.NewRegistry()
	require.NoError(t, prom.RegisterVolumes(reg, prom.Usage{Summary: func() (stats.Summary, error) { return summary, err }}))
	for name, want := range map[string][]string{
		"kubelet_volume_stats_capacity_bytes":  {`{namespace="default",persistentvolumeclaim="data"} 11`},
		"kubelet_volume_stats_available_bytes": {`{namespace="default",persistentvolumeclaim="data"} 12`},
		"kubelet_volume_stats_used_bytes":      {`{namespace="default",persistentvolumeclaim="data"} 13`, `{namespace="other",persistentvolumeclaim="data"} 7`},
		"kubelet_volume_stats_inodes":          {`{namespace="default",persistentvolumeclaim="data"} 14`},
		"kubelet_volume_stats_inodes_free":     {`{namespace="default",persistentvolumeclaim="data"} 15`},
		"kubelet_volume_stats_inodes_used":     {`{namespace="default",persistentvolumeclaim="data"} 16`},
	} {
		for i := range want {
			want[i] = name + want[i]
		}
		assert.Equal(t, want, series(t, reg, name))
	}
	assert.Len(t, wellFormed(t, reg), 6)
	err = errors.New("no answer")
	assert.Empty(t, scrape(t, reg))
	require.Error(t, prom.RegisterVolumes(reg, prom.Usage{}))
}
