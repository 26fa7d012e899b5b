package prom

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/podworkers"
	"github.com/sublet-dev/agent/runtime"
)

type workerMetrics struct {
	duration, waited *prometheus.HistogramVec
	failures         *prometheus.CounterVec
	terminations     *prometheus.CounterVec
	running          *prometheus.GaugeVec
	panics           prometheus.Counter
}

func newWorkers() workerMetrics {
	return workerMetrics{
		duration:     histograms("kubelet_pod_worker_duration_seconds", "Duration of pod syncs, by operation: sync, terminate or finish.", prometheus.DefBuckets, "operation_type"),
		waited:       histograms("sublet_pod_worker_wait_seconds", "Time that the oldest request served by a pod sync had waited for it.", quick(), "operation_type"),
		failures:     counters("sublet_pod_worker_errors_total", "Pod syncs that failed.", "operation_type"),
		running:      gauges("sublet_pod_worker_active", "Pod syncs in progress.", "operation_type"),
		terminations: counters("sublet_pod_terminations_total", "Pods whose termination began, by cause.", "cause"),
		panics:       counter("sublet_pod_worker_panics_total", "Pod syncs that panicked."),
	}
}

func (w *workerMetrics) all() []prometheus.Collector {
	return []prometheus.Collector{w.duration, w.waited, w.failures, w.running, w.terminations, w.panics}
}

// PodWorkers returns the hooks of podworkers.Workers.
func (m *Metrics) PodWorkers() podworkers.Hooks {
	w := &m.workers
	return podworkers.Hooks{
		PhaseChanged: func(uid types.UID, _, to podworkers.Phase, c podworkers.Cause) {
			switch to {
			case podworkers.Terminating:
				w.terminations.WithLabelValues(cause(c)).Inc()
			case podworkers.Finished:
				m.probe.forget(uid)
				m.start.forget(uid)
			default:
			}
		},
		SyncStarted: func(ctx context.Context, call podworkers.SyncCall) context.Context {
			op := operation(call.Phase)
			w.running.WithLabelValues(op).Inc()
			if !call.RequestedAt.IsZero() {
				w.waited.WithLabelValues(op).Observe(max(0, time.Since(call.RequestedAt)).Seconds())
			}
			return ctx
		},
		SyncEnded: func(_ context.Context, call podworkers.SyncCall, duration time.Duration, _ runtime.SyncResult, err error) {
			op := operation(call.Phase)
			w.running.WithLabelValues(op).Dec()
			w.duration.WithLabelValues(op).Observe(duration.Seconds())
			m.start.created(call.UID, err)
			if err != nil {
				w.failures.WithLabelValues(op).Inc()
			}
		},
		SyncPanicked: func(podworkers.SyncCall, any) { w.panics.Inc() },
	}
}

// operation returns the name of the Syncer method that is called in phase p.
func operation(p podworkers.Phase) string {
	switch p {
	case podworkers.Syncing:
		return "sync"
	case podworkers.Terminating:
		return "terminate"
	default:
		return "finish"
	}
}

func cause(c podworkers.Cause) string {
	switch c {
	case podworkers.Deleted:
		return "deleted"
	case podworkers.Completed:
		return "completed"
	case podworkers.Killed:
		return "killed"
	case podworkers.Evicted:
		return "evicted"
	case podworkers.Removed:
		return "removed"
	case podworkers.Orphaned:
		return "orphaned"
	default:
		return otherValue
	}
}
