package prom

import (
	"errors"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/stats"
)

// Usage queries what a node and its pods use. The functions are called on each scrape,
// from any goroutine.
type Usage struct {
	// Summary measures: Agent.Stats with a context of its own or, for RegisterResources,
	// Agent.CPUAndMemoryStats, which is cheaper. Required
	Summary func() (stats.Summary, error)
	// Pods returns the pods with their statuses, for the images and ids of containers.
	// Required by RegisterContainers
	Pods func() []*corev1.Pod
	// Capacity returns the capacity of the node; default: unknown
	Capacity func() corev1.ResourceList
}

// RegisterResources registers the metrics of the kubelet's /metrics/resource, from which
// metrics-server learns the usage of nodes and containers. Use a Registerer of its own:
// some names are those of RegisterContainers with other labels.
func RegisterResources(reg prometheus.Registerer, u Usage) error {
	if u.Summary == nil {
		return errors.New("prom: Usage.Summary required")
	}
	return registerUsage(reg, newResources(u))
}

// RegisterContainers registers the metrics of the kubelet's /metrics/cadvisor that
// dashboards and autoscalers use, as far as a stats.Summary has them. Use a Registerer of
// its own.
func RegisterContainers(reg prometheus.Registerer, u Usage) error {
	if u.Summary == nil || u.Pods == nil {
		return errors.New("prom: Usage.Summary and Usage.Pods required")
	}
	return registerUsage(reg, newContainers(u))
}

// RegisterProbes registers the metrics of the kubelet's /metrics/probes with a second
// Registerer. The first one does not have them any more.
func (m *Metrics) RegisterProbes(reg prometheus.Registerer) error {
	if reg == nil {
		return errors.New("prom: nil Registerer")
	}
	if err := reg.Register(probeCollector{m.probe}); err != nil {
		return fmt.Errorf("prom: register probes: %w", err)
	}
	m.probe.apart.Store(true)
	return nil
}

// probeCollector collects those metrics of probes that a kubelet has.
type probeCollector struct{ *probeMetrics }

// Describe implements prometheus.Collector.
func (c probeCollector) Describe(ch chan<- *prometheus.Desc) {
	c.probes.Describe(ch)
	c.duration.Describe(ch)
}

// Collect implements prometheus.Collector.
func (c probeCollector) Collect(ch chan<- prometheus.Metric) {
	c.sweep()
	c.probes.Collect(ch)
	c.duration.Collect(ch)
}

func registerUsage(reg prometheus.Registerer, c prometheus.Collector) error {
	if reg == nil {
		return errors.New("prom: nil Registerer")
	}
	if err := reg.Register(c); err != nil {
		return fmt.Errorf("prom: register usage: %w", err)
	}
	return nil
}

// latest returns one pod of each name: two with the same name, of which one is being
// terminated, would be the same series.
func latest(pods []stats.PodStats) []stats.PodStats {
	index := make(map[string]int, len(pods))
	unique := make([]stats.PodStats, 0, len(pods))
	for i := range pods {
		name := pods[i].PodRef.Namespace + "/" + pods[i].PodRef.Name
		at, ok := index[name]
		switch {
		case !ok:
			index[name] = len(unique)
			unique = append(unique, pods[i])
		case unique[at].StartTime.Time.Before(pods[i].StartTime.Time):
			unique[at] = pods[i]
		}
	}
	return unique
}
