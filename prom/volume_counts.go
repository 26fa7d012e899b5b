package prom

import (
	"errors"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sublet-dev/agent/volume"
)

// RegisterVolumeCounts registers volume_manager_total_volumes, the numbers of volumes by plugin and state. counts is called on
// each scrape, from any goroutine, and must not block. The Counts of a volume.Manager can be used.
func (m *Metrics) RegisterVolumeCounts(reg prometheus.Registerer, counts func() map[volume.Kind]volume.Count) error {
	if reg == nil || counts == nil {
		return errors.New("prom: nil Registerer or counts of volumes")
	}
	c := &volumeCounts{metrics: m, counts: counts, total: gaugeFamily("volume_manager_total_volumes",
		"Volumes of pods, by plugin and state: to be mounted (desired_state_of_world) or mounted (actual_state_of_world).", "plugin_name", "state")}
	if err := reg.Register(c); err != nil {
		return fmt.Errorf("prom: register counts of volumes: %w", err)
	}
	return nil
}

// volumeCounts is a collector that counts volumes on each scrape.
type volumeCounts struct {
	metrics *Metrics
	counts  func() map[volume.Kind]volume.Count
	total   family
}

// Describe implements prometheus.Collector.
func (c *volumeCounts) Describe(ch chan<- *prometheus.Desc) { ch <- c.total.desc }

// Collect implements prometheus.Collector.
func (c *volumeCounts) Collect(ch chan<- prometheus.Metric) {
	byPlugin := map[string]volume.Count{}
	for kind, n := range c.counts() {
		plugin := c.metrics.plugin(kind)
		sum := byPlugin[plugin]
		sum.Desired += n.Desired
		sum.Mounted += n.Mounted
		byPlugin[plugin] = sum
	}
	for plugin, n := range byPlugin {
		c.total.value(ch, time.Time{}, float64(n.Desired), newLabels("plugin_name", plugin, "state", "desired_state_of_world"))
		c.total.value(ch, time.Time{}, float64(n.Mounted), newLabels("plugin_name", plugin, "state", "actual_state_of_world"))
	}
}
