package prom

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/containergc"
	"github.com/sublet-dev/agent/eviction"
	"github.com/sublet-dev/agent/imagegc"
	"github.com/sublet-dev/agent/logrotate"
	"github.com/sublet-dev/agent/runtime"
)

type evictionMetrics struct {
	evictions    *prometheus.CounterVec
	measurements *prometheus.HistogramVec
	duration     prometheus.Histogram
	conditions   *prometheus.GaugeVec
}

func newEviction() evictionMetrics {
	return evictionMetrics{
		evictions:    counters("kubelet_evictions", "Evicted pods, by the signal of the threshold or of the local storage limit.", "eviction_signal"),
		duration:     histogram("sublet_eviction_duration_seconds", "Time from the selection of a pod for eviction until its containers were terminated.", ops()),
		measurements: histograms("sublet_eviction_measurement_duration_seconds", "Duration of measurements of node and pod usage, by result.", quick(), "result"),
		conditions:   gauges("sublet_node_condition", "1 while a node condition is true.", "condition"),
	}
}

func (e *evictionMetrics) all() []prometheus.Collector {
	return []prometheus.Collector{e.evictions, e.duration, e.measurements, e.conditions}
}

// Eviction returns the hooks of an eviction.Manager.
func (m *Metrics) Eviction() eviction.Hooks {
	e := &m.eviction
	return eviction.Hooks{
		Measured: func(duration time.Duration, err error) {
			e.measurements.WithLabelValues(result(err)).Observe(duration.Seconds())
		},
		Evicting: func(signal eviction.Signal, _ []eviction.Candidate, _ runtime.Termination) {
			e.evictions.WithLabelValues(string(signal)).Inc()
		},
		Evicted: func(_ eviction.Signal, _ *corev1.Pod, duration time.Duration, err error) {
			if err == nil {
				e.duration.Observe(duration.Seconds())
			}
		},
		ConditionsChanged: func(all []corev1.NodeCondition) {
			for i := range all {
				e.conditions.WithLabelValues(string(all[i].Type)).Set(boolValue(all[i].Status == corev1.ConditionTrue))
			}
		},
	}
}

type imageMetrics struct {
	removed  *prometheus.CounterVec
	failures prometheus.Counter
	freed    prometheus.Counter
	duration prometheus.Histogram
}

func newImages() imageMetrics {
	return imageMetrics{
		removed:  counters("kubelet_image_garbage_collected_total", "Images removed, by reason: age or space.", "reason"),
		failures: counter("sublet_image_gc_errors_total", "Images whose removal failed."),
		freed:    counter("sublet_image_gc_freed_bytes_total", "Bytes freed on the image file system by image garbage collection."),
		duration: histogram("sublet_image_gc_duration_seconds", "Duration of image garbage collections.", ops()),
	}
}

func (i *imageMetrics) all() []prometheus.Collector {
	return []prometheus.Collector{i.removed, i.failures, i.freed, i.duration}
}

type garbageMetrics struct {
	removed  *prometheus.CounterVec
	duration prometheus.Histogram
}

func newGarbage() garbageMetrics {
	return garbageMetrics{
		removed:  counters("sublet_container_gc_total", "Removals of exited containers and sandboxes, by kind and result.", "kind", "result"),
		duration: histogram("sublet_container_gc_duration_seconds", "Duration of container garbage collections.", ops()),
	}
}

func (g *garbageMetrics) all() []prometheus.Collector {
	return []prometheus.Collector{g.removed, g.duration}
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
		Collected: func(r containergc.Result, _ error) { g.duration.Observe(r.Duration.Seconds()) },
	}
}

type rotationMetrics struct {
	rotations *prometheus.CounterVec
	rotated   prometheus.Counter
}

func newRotation() rotationMetrics {
	return rotationMetrics{
		rotations: counters("sublet_log_rotations_total", "Rotations of container logs, by result.", "result"),
		rotated:   counter("sublet_log_rotated_bytes_total", "Bytes of container logs that were rotated."),
	}
}

func (r *rotationMetrics) all() []prometheus.Collector {
	return []prometheus.Collector{r.rotations, r.rotated}
}

// LogRotation returns the hooks of a logrotate.Rotator.
func (m *Metrics) LogRotation() logrotate.Hooks {
	r := &m.rotation
	return logrotate.Hooks{Rotated: func(_ string, bytes int64, _ time.Duration, err error) {
		r.rotations.WithLabelValues(result(err)).Inc()
		if err == nil {
			r.rotated.Add(float64(bytes))
		}
	}}
}

// ImageGC returns the hooks of an imagegc.Collector.
func (m *Metrics) ImageGC() imagegc.Hooks {
	i := &m.images
	return imagegc.Hooks{
		Removed: func(_ runtime.Image, r imagegc.Reason, _ time.Duration, err error) {
			if err != nil {
				i.failures.Inc()
				return
			}
			reason := "space"
			if r == imagegc.ReasonMaxAge {
				reason = "age"
			}
			i.removed.WithLabelValues(reason).Inc()
		},
		Collected: func(r imagegc.Result, _ error) {
			i.freed.Add(float64(r.BytesFreed))
			i.duration.Observe(r.Duration.Seconds())
		},
	}
}
