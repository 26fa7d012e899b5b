package prom

import (
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sublet-dev/agent/stats"
)

// RegisterVolumes registers the metrics kubelet_volume_stats_… of a kubelet's /metrics: the usage
// of PersistentVolumeClaims.
func RegisterVolumes(reg prometheus.Registerer, u Usage) error {
	if u.Summary == nil {
		return errors.New("prom: Usage.Summary required")
	}
	return registerUsage(reg, newVolumes(u))
}

// volumes collects the usage of claims.
type volumes struct {
	Usage

	capacity, available, used      family
	inodes, inodesFree, inodesUsed family
}

func newVolumes(u Usage) *volumes {
	claim := []string{"namespace", "persistentvolumeclaim"}
	return &volumes{
		Usage:      u,
		capacity:   gaugeFamily("kubelet_volume_stats_capacity_bytes", "Capacity of a volume.", claim...),
		available:  gaugeFamily("kubelet_volume_stats_available_bytes", "Bytes available in a volume.", claim...),
		used:       gaugeFamily("kubelet_volume_stats_used_bytes", "Bytes used in a volume.", claim...),
		inodes:     gaugeFamily("kubelet_volume_stats_inodes", "Maximum number of inodes in a volume.", claim...),
		inodesFree: gaugeFamily("kubelet_volume_stats_inodes_free", "Free inodes in a volume.", claim...),
		inodesUsed: gaugeFamily("kubelet_volume_stats_inodes_used", "Used inodes in a volume.", claim...),
	}
}

// Describe implements prometheus.Collector.
func (v *volumes) Describe(ch chan<- *prometheus.Desc) {
	describe(ch, v.capacity, v.available, v.used, v.inodes, v.inodesFree, v.inodesUsed)
}

// Collect implements prometheus.Collector. A claim that several pods use is one series.
func (v *volumes) Collect(ch chan<- prometheus.Metric) {
	s, err := v.Summary()
	if err != nil {
		return
	}
	counted := map[stats.PVCReference]bool{}
	for i := range s.Pods {
		for _, volume := range s.Pods[i].VolumeStats {
			if volume.PVCRef == nil || counted[*volume.PVCRef] {
				continue
			}
			counted[*volume.PVCRef] = true
			labels := newLabels("namespace", volume.PVCRef.Namespace, "persistentvolumeclaim", volume.PVCRef.Name)
			for _, m := range []struct {
				family
				value *uint64
			}{
				{v.capacity, volume.CapacityBytes},
				{v.available, volume.AvailableBytes},
				{v.used, volume.UsedBytes},
				{v.inodes, volume.Inodes},
				{v.inodesFree, volume.InodesFree},
				{v.inodesUsed, volume.InodesUsed},
			} {
				m.known(ch, time.Time{}, m.value, labels)
			}
		}
	}
}
