package prom

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sublet-dev/agent/podsource"
)

type sourceMetrics struct {
	pods, faults, last *prometheus.GaugeVec
	taking             *prometheus.HistogramVec
	changes, faulted   *prometheus.CounterVec
}

func newSources() sourceMetrics {
	return sourceMetrics{
		pods:    gauges("sublet_source_pods", "Valid pods that a source wants.", "source"),
		faults:  gauges("sublet_source_faults", "What is wrong now with what a source wants.", "source"),
		last:    gauges("sublet_source_last_taken_seconds", "When a source last told what it wants, in seconds since 1970.", "source"),
		taking:  histograms("sublet_source_take_duration_seconds", "How long it took to work out what a source wants.", quick(), "source"),
		changes: counters("sublet_source_changes_total", "Pods that changes were told of, by kind of change.", "source", "op"),
		faulted: counters("sublet_source_faults_total", "Faults that came up.", "source"),
	}
}

func (s *sourceMetrics) all() []prometheus.Collector {
	return []prometheus.Collector{s.pods, s.faults, s.last, s.taking, s.changes, s.faulted}
}

// Sources returns the hooks of a podsource.Mux.
func (m *Metrics) Sources() podsource.Hooks {
	s := &m.sources
	return podsource.Hooks{
		SetReceived: func(source string, pods, faults int, took time.Duration) {
			s.pods.WithLabelValues(source).Set(float64(pods))
			s.faults.WithLabelValues(source).Set(float64(faults))
			s.last.WithLabelValues(source).Set(float64(time.Now().UnixMilli()) / 1000)
			s.taking.WithLabelValues(source).Observe(took.Seconds())
		},
		ChangeDelivered: func(op podsource.Op, source string, pods int) {
			s.changes.WithLabelValues(source, op.String()).Add(float64(pods))
		},
		SourceFailed: func(source string, _ podsource.SourceError) { s.faulted.WithLabelValues(source).Inc() },
	}
}
