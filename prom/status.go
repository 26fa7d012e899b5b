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
		start:  histogram("kubelet_pod_start_duration_seconds", "Time from when a pod was first seen to when it was told as running.", starts()),
		synced: histogram("kubelet_pod_status_sync_duration_seconds", "Time from a change of a pod's status to when it was told.", quick()),
		send:   histograms("sublet_status_send_duration_seconds", "How long it took to tell a status, by result.", quick(), "result"),
		phases: counters("sublet_pod_phase_changes_total", "Pods that came to a phase.", "phase"),
	}
}

func (s *statusMetrics) all() []prometheus.Collector {
	return []prometheus.Collector{s.start, s.synced, s.send, s.phases}
}

// Status returns the hooks of a status.Manager.
func (m *Metrics) Status() status.Hooks {
	s := &m.status
	return status.Hooks{
		Changed: func(pod *corev1.Pod, former, now corev1.PodStatus) {
			if former.Phase == now.Phase {
				return
			}
			s.phases.WithLabelValues(string(now.Phase)).Inc()
			// A pod that already ran when the agent started has no former phase.
			if now.Phase != corev1.PodRunning || former.Phase != corev1.PodPending {
				return
			}
			if seen, err := time.Parse(time.RFC3339Nano, pod.Annotations[podspec.AnnotationFirstSeen]); err == nil {
				s.start.Observe(max(0, time.Since(seen)).Seconds())
			}
		},
		Sent: func(_ *corev1.Pod, took, waited time.Duration, err error) {
			s.send.WithLabelValues(result(err)).Observe(took.Seconds())
			if err == nil {
				s.synced.Observe((waited + took).Seconds())
			}
		},
	}
}
