package prom

import (
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/runtime"
	"github.com/sublet-dev/agent/syncloop"
)

type loopMetrics struct {
	iterations         *prometheus.HistogramVec
	ready              prometheus.Gauge
	admitted, rejected *prometheus.CounterVec
	orphans            prometheus.Counter
	cleanups           *prometheus.CounterVec
	preemptions        *prometheus.CounterVec
}

func newLoop() loopMetrics {
	return loopMetrics{
		iterations: histograms("sublet_sync_loop_duration_seconds", "Duration of sync loop iterations, by input.", quick(), "input"),
		ready:      gauge("sublet_runtime_ready", "1 while the container runtime is ready for pods."),
		admitted:   counters("sublet_pods_admitted_total", "Pods admitted: new, or adopted because they already ran.", "how"),
		rejected:   counters("kubelet_admission_rejections_total", "Pods rejected at admission, by reason.", "reason"),
		orphans:    counter("kubelet_orphaned_runtime_pods_total", "Pods found in the runtime that no source contains."),
		cleanups: counters("sublet_orphaned_resources_total",
			"Removals of resources of orphaned pods, by store and result.", "store", "result"),
		preemptions: counters("kubelet_preemptions", "Pods preempted in favour of critical ones, by the first resource that these lacked.", "preemption_signal"),
	}
}

func (l *loopMetrics) all() []prometheus.Collector {
	return []prometheus.Collector{l.iterations, l.ready, l.admitted, l.rejected, l.orphans, l.cleanups, l.preemptions}
}

// SyncLoop returns the hooks of a syncloop.Loop.
func (m *Metrics) SyncLoop() syncloop.Hooks {
	return syncloop.Hooks{
		IterationEnded: func(in syncloop.Input, duration time.Duration) {
			m.loop.iterations.WithLabelValues(string(in)).Observe(duration.Seconds())
		},
		RuntimeReadyChanged: func(err error) { m.loop.ready.Set(boolValue(err == nil)) },
	}
}

// Housekeeper returns the hooks of a syncloop.Housekeeper.
func (m *Metrics) Housekeeper() syncloop.HousekeeperHooks {
	return syncloop.HousekeeperHooks{
		OrphanFound: func(runtime.Pod) { m.loop.orphans.Inc() },
		StoreCleaned: func(store string, _ types.UID, err error) {
			m.loop.cleanups.WithLabelValues(store, result(err)).Inc()
		},
	}
}

// PodManager returns the hooks of a syncloop.PodManager.
func (m *Metrics) PodManager() syncloop.PodManagerHooks {
	l := &m.loop
	return syncloop.PodManagerHooks{
		Admitted: func(*corev1.Pod) { l.admitted.WithLabelValues("new").Inc() },
		Adopted:  func(*corev1.Pod) { l.admitted.WithLabelValues("adopted").Inc() },
		Rejected: func(_ *corev1.Pod, reason, _ string) { l.rejected.WithLabelValues(rejection(reason)).Inc() },
		Preempted: func(_, _ *corev1.Pod, resource corev1.ResourceName) {
			l.preemptions.WithLabelValues(string(resource)).Inc()
		},
	}
}

// rejection returns the label of a reason. As with a kubelet, resources other than the node's own have one for all: a pod can
// request any name, and each would be a series.
func rejection(reason string) string {
	lacked, ok := strings.CutPrefix(reason, "OutOf")
	switch corev1.ResourceName(lacked) {
	case corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage, corev1.ResourcePods:
		return reason
	default:
		if ok {
			return "OutOfExtendedResources"
		}
		return reason
	}
}
