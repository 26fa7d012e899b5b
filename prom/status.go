package prom

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/status"
)

type statusMetrics struct {
	start, synced prometheus.Histogram
	send          *prometheus.HistogramVec
	phases        *prometheus.CounterVec
}

func newStatus() statusMetrics {
	return statusMetrics{
		start:  histogram("kubelet_pod_start_duration_seconds", "Time from when a pod was first observed in a source to when Running was first reported.", starts()),
		synced: histogram("kubelet_pod_status_sync_duration_seconds", "Time from a change of a pod's status to when it was sent.", quick()),
		send:   histograms("sublet_status_send_duration_seconds", "Duration of status updates to sinks, by result.", quick(), "result"),
		phases: counters("sublet_pod_phase_changes_total", "Changes of pod phases, by new phase.", "phase"),
	}
}

func (s *statusMetrics) all() []prometheus.Collector {
	return []prometheus.Collector{s.start, s.synced, s.send, s.phases}
}

// Status returns the hooks of a status.Manager.
func (m *Metrics) Status() status.Hooks {
	s := &m.status
	return status.Hooks{
		Changed: func(pod *corev1.Pod, previous, current corev1.PodStatus) {
			if previous.Phase == current.Phase {
				return
			}
			s.phases.WithLabelValues(string(current.Phase)).Inc()
			// A pod that already ran when the agent started has no previous phase.
			if current.Phase != corev1.PodRunning || previous.Phase != corev1.PodPending {
				return
			}
			if observedAt, err := time.Parse(time.RFC3339Nano, pod.Annotations[podspec.AnnotationFirstSeen]); err == nil {
				s.start.Observe(max(0, time.Since(observedAt)).Seconds())
			}
		},
		Sent: func(_ *corev1.Pod, duration, waited time.Duration, err error) {
			s.send.WithLabelValues(result(err)).Observe(duration.Seconds())
			if err == nil {
				s.synced.Observe((waited + duration).Seconds())
			}
		},
	}
}
