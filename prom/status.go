package prom

import (
	"slices"
	"strconv"
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
	terminated    *prometheus.CounterVec
	reasons       *labelValues
}

func newStatus() statusMetrics {
	return statusMetrics{
		start:  histogram("kubelet_pod_start_duration_seconds", "Time from when a pod was first observed in a source to when Running was first reported.", starts()),
		synced: histogram("kubelet_pod_status_sync_duration_seconds", "Time from a change of a pod's status to when it was sent.", quick()),
		send:   histograms("sublet_status_send_duration_seconds", "Duration of status updates to sinks, by result.", quick(), "result"),
		phases: counters("sublet_pod_phase_changes_total", "Changes of pod phases, by new phase.", "phase"),
		terminated: counters("kubelet_terminated_containers_total", "Containers that have terminated, by type, exit code and reason.",
			"container_type", "exit_code", "reason"),
		reasons: newLabelValues(),
	}
}

func (s *statusMetrics) all() []prometheus.Collector {
	return []prometheus.Collector{s.start, s.synced, s.send, s.phases, s.terminated}
}

// Status returns the hooks of a status.Manager.
func (m *Metrics) Status() status.Hooks {
	s := &m.status
	return status.Hooks{
		Changed: func(pod *corev1.Pod, previous, current corev1.PodStatus) {
			s.countAllTerminated(pod, &previous, &current)
			m.start.observe(pod, &previous, &current)
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

// countAllTerminated counts the containers of a pod that have terminated. The first status in this process is
// compared with the one that the source has, if there is one: what a previous process has seen is not counted.
func (s *statusMetrics) countAllTerminated(pod *corev1.Pod, previous, current *corev1.PodStatus) {
	if previous.Phase == "" {
		previous = &pod.Status
	}
	if previous.Phase == "" {
		return
	}
	s.countTerminated("init_container", previous.InitContainerStatuses, current.InitContainerStatuses)
	s.countTerminated("container", previous.ContainerStatuses, current.ContainerStatuses)
	s.countTerminated("ephemeral_container", previous.EphemeralContainerStatuses, current.EphemeralContainerStatuses)
}

// countTerminated counts the containers that are reported as terminated for the first time.
func (s *statusMetrics) countTerminated(kind string, previous, current []corev1.ContainerStatus) {
	for i := range current {
		end := current[i].State.Terminated
		if end == nil || slices.ContainsFunc(previous, func(p corev1.ContainerStatus) bool {
			return p.Name == current[i].Name && p.State.Terminated != nil && p.RestartCount == current[i].RestartCount
		}) {
			continue
		}
		s.terminated.WithLabelValues(kind, exitCode(end.ExitCode), s.reasons.add(end.Reason)).Inc()
	}
}

// exitCode returns the label of an exit code. A process has one of a byte. What a runtime runs besides processes, such as
// WebAssembly, may end with any number, and each would be a series.
func exitCode(code int32) string {
	if code < 0 || code > 255 {
		return otherValue
	}
	return strconv.Itoa(int(code))
}
