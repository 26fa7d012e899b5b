package prom

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/containergc"
	"github.com/sublet-dev/agent/eviction"
	"github.com/sublet-dev/agent/imagegc"
	"github.com/sublet-dev/agent/runtime"
)

type evictionMetrics struct {
	evictions  *prometheus.CounterVec
	looks      *prometheus.HistogramVec
	took       prometheus.Histogram
	conditions *prometheus.GaugeVec
}

func newEviction() evictionMetrics {
	return evictionMetrics{
		evictions:  counters("kubelet_evictions", "Pods that were evicted, by signal; of local storage limits it is empty.", "eviction_signal"),
		took:       histogram("sublet_eviction_duration_seconds", "Time from the choice of a pod to when it was gone.", ops()),
		looks:      histograms("sublet_eviction_look_duration_seconds", "How long one look at the node's resources took, by result.", quick(), "result"),
		conditions: gauges("sublet_node_condition", "1 while a condition of the node holds.", "condition"),
	}
}

func (e *evictionMetrics) all() []prometheus.Collector {
	return []prometheus.Collector{e.evictions, e.took, e.looks, e.conditions}
}

// Eviction returns the hooks of an eviction.Manager.
func (m *Metrics) Eviction() eviction.Hooks {
	e := &m.eviction
	return eviction.Hooks{
		Measured: func(took time.Duration, err error) { e.looks.WithLabelValues(result(err)).Observe(took.Seconds()) },
		Evicting: func(signal eviction.Signal, _ []eviction.Candidate, _ runtime.Termination) {
			e.evictions.WithLabelValues(string(signal)).Inc()
		},
		Evicted: func(_ eviction.Signal, _ *corev1.Pod, took time.Duration, err error) {
			if err == nil {
				e.took.Observe(took.Seconds())
			}
		},
		ConditionsChanged: func(all []corev1.NodeCondition) {
			for i := range all {
				e.conditions.WithLabelValues(string(all[i].Type)).Set(truth(all[i].Status == corev1.ConditionTrue))
			}
		},
	}
}

type imageMetrics struct {
	removed  *prometheus.CounterVec
	failures prometheus.Counter
	freed    prometheus.Counter
	took     prometheus.Histogram
}

func newImages() imageMetrics {
	return imageMetrics{
		removed:  counters("kubelet_image_garbage_collected_total", "Images that were removed, by reason: age or space.", "reason"),
		failures: counter("sublet_image_gc_errors_total", "Images that could not be removed."),
		freed:    counter("sublet_image_gc_freed_bytes_total", "Bytes that the image file system gained by collections."),
		took:     histogram("sublet_image_gc_duration_seconds", "How long one collection took.", ops()),
	}
}

func (i *imageMetrics) all() []prometheus.Collector {
	return []prometheus.Collector{i.removed, i.failures, i.freed, i.took}
}

type garbageMetrics struct {
	removed *prometheus.CounterVec
	took    prometheus.Histogram
}

func newGarbage() garbageMetrics {
	return garbageMetrics{
		removed: counters("sublet_container_gc_total", "Dead containers and sandboxes that were to be removed, by kind and result.", "kind", "result"),
		took:    histogram("sublet_container_gc_duration_seconds", "How long one collection of dead containers took.", ops()),
	}
}

func (g *garbageMetrics) all() []prometheus.Collector {
	return []prometheus.Collector{g.removed, g.took}
}

// ContainerGC returns the hooks of a containergc.Collector.
func (m *Metrics) ContainerGC() containergc.Hooks {
	g := &m.garbage
	return containergc.Hooks{
		Removed: func(r containergc.Removal, _ time.Duration, err error) {
			kind := "container"
			if r.Container == nil {
				kind = "sandbox"
			}
			g.removed.WithLabelValues(kind, result(err)).Inc()
		},
		Collected: func(r containergc.Result, _ error) { g.took.Observe(r.Duration.Seconds()) },
	}
}

// ImageGC returns the hooks of an imagegc.Collector.
func (m *Metrics) ImageGC() imagegc.Hooks {
	i := &m.images
	return imagegc.Hooks{
		Removed: func(_ runtime.Image, why imagegc.Reason, _ time.Duration, err error) {
			if err != nil {
				i.failures.Inc()
				return
			}
			reason := "space"
			if why == imagegc.ReasonMaxAge {
				reason = "age"
			}
			i.removed.WithLabelValues(reason).Inc()
		},
		Collected: func(r imagegc.Result, _ error) {
			i.freed.Add(float64(r.BytesFreed))
			i.took.Observe(r.Duration.Seconds())
		},
	}
}
