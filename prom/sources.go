package prom

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sublet-dev/agent/podsource"
)

type sourceMetrics struct {
	pods, errors, updated *prometheus.GaugeVec
	duration              *prometheus.HistogramVec
	changes, failures     *prometheus.CounterVec
}

func newSources() sourceMetrics {
	return sourceMetrics{
		pods:     gauges("sublet_source_pods", "Valid pods in the last update from a source.", "source"),
		errors:   gauges("sublet_source_errors", "Errors in the last update from a source: invalid pods and unreadable manifests.", "source"),
		updated:  gauges("sublet_source_last_update_seconds", "Time of the last update from a source, in seconds since 1970.", "source"),
		duration: histograms("sublet_source_update_duration_seconds", "Duration of processing an update from a source.", quick(), "source"),
		changes:  counters("sublet_source_changes_total", "Pods in delivered configuration changes, by operation.", "source", "op"),
		failures: counters("sublet_source_errors_total", "Source errors reported.", "source"),
	}
}

func (s *sourceMetrics) all() []prometheus.Collector {
	return []prometheus.Collector{s.pods, s.errors, s.updated, s.duration, s.changes, s.failures}
}

// Sources returns the hooks of a podsource.Mux.
func (m *Metrics) Sources() podsource.Hooks {
	s := &m.sources
	return podsource.Hooks{
		SetReceived: func(source string, pods, errors int, duration time.Duration) {
			s.pods.WithLabelValues(source).Set(float64(pods))
			s.errors.WithLabelValues(source).Set(float64(errors))
			s.updated.WithLabelValues(source).Set(float64(time.Now().UnixMilli()) / 1000)
			s.duration.WithLabelValues(source).Observe(duration.Seconds())
		},
		ChangeDelivered: func(op podsource.Op, source string, pods int) {
			s.changes.WithLabelValues(source, op.String()).Add(float64(pods))
		},
		SourceFailed: func(source string, _ podsource.SourceError) { s.failures.WithLabelValues(source).Inc() },
	}
}
