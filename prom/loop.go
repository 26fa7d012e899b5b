package prom

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/runtime"
	"github.com/sublet-dev/agent/syncloop"
)

type loopMetrics struct {
	turns             *prometheus.HistogramVec
	ready             prometheus.Gauge
	admitted, refused *prometheus.CounterVec
	orphans           prometheus.Counter
	leftovers         *prometheus.CounterVec
}

func newLoop() loopMetrics {
	return loopMetrics{
		turns:    histograms("sublet_sync_loop_duration_seconds", "How long one turn of the loop took, by what it was for.", quick(), "input"),
		ready:    gauge("sublet_runtime_ready", "1 while the runtime is ready for pods."),
		admitted: counters("sublet_pods_admitted_total", "Pods that were let in: new, or adopted because they already ran.", "how"),
		refused:  counters("kubelet_admission_rejections_total", "Pods that were refused, by reason.", "reason"),
		orphans:  counter("kubelet_orphaned_runtime_pods_total", "Pods found in the runtime that no source wants."),
		leftovers: counters("sublet_leftovers_total",
			"What was left of pods that are gone, by where it was and whether it could be removed.", "store", "result"),
	}
}

func (l *loopMetrics) all() []prometheus.Collector {
	return []prometheus.Collector{l.turns, l.ready, l.admitted, l.refused, l.orphans, l.leftovers}
}

// SyncLoop returns the hooks of a syncloop.Loop.
func (m *Metrics) SyncLoop() syncloop.Hooks {
	return syncloop.Hooks{
		IterationEnded: func(in syncloop.Input, took time.Duration) {
			m.loop.turns.WithLabelValues(string(in)).Observe(took.Seconds())
		},
		RuntimeReadyChanged: func(err error) { m.loop.ready.Set(truth(err == nil)) },
	}
}

// Housekeeper returns the hooks of a syncloop.Housekeeper.
func (m *Metrics) Housekeeper() syncloop.HousekeeperHooks {
	return syncloop.HousekeeperHooks{
		OrphanFound: func(runtime.Pod) { m.loop.orphans.Inc() },
		StoreCleaned: func(store string, _ types.UID, err error) {
			m.loop.leftovers.WithLabelValues(store, result(err)).Inc()
		},
	}
}

// PodManager returns the hooks of syncloop.Pods.
func (m *Metrics) PodManager() syncloop.PodManagerHooks {
	l := &m.loop
	return syncloop.PodManagerHooks{
		Admitted: func(*corev1.Pod) { l.admitted.WithLabelValues("new").Inc() },
		Adopted:  func(*corev1.Pod) { l.admitted.WithLabelValues("adopted").Inc() },
		Rejected: func(_ *corev1.Pod, reason, _ string) { l.refused.WithLabelValues(reason).Inc() },
	}
}
