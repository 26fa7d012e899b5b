package prom

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/pleg"
)

type plegMetrics struct {
	relist, interval, inspect, waited prometheus.Histogram
	lastSeen, open                    prometheus.Gauge
	failures                          *prometheus.CounterVec
	opened, broken, hints, missed     prometheus.Counter
}

func newPleg() plegMetrics {
	return plegMetrics{
		relist:   histogram("kubelet_pleg_relist_duration_seconds", "How long it took to list all pods of the runtime.", prometheus.DefBuckets),
		interval: histogram("kubelet_pleg_relist_interval_seconds", "Time from one listing of all pods to the next.", prometheus.DefBuckets),
		lastSeen: gauge("kubelet_pleg_last_seen_seconds", "When the runtime last answered, in seconds since 1970."),
		opened:   counter("kubelet_evented_pleg_connection_success_count", "How often the runtime's event stream was opened."),
		broken:   counter("kubelet_evented_pleg_connection_error_count", "How often the runtime's event stream broke or could not be opened."),
		open:     gauge("sublet_pleg_stream_open", "1 while the runtime's event stream is open."),
		inspect:  histogram("sublet_pleg_inspect_duration_seconds", "How long it took to inspect one pod.", quick()),
		waited:   histogram("sublet_pleg_inspect_wait_seconds", "How long a pod waited for its inspection.", quick()),
		failures: counters("sublet_pleg_errors_total", "Looks at the runtime that failed, by what was done: list or inspect.", "operation"),
		hints:    counter("sublet_pleg_hints_total", "Pods that the runtime's event stream told of."),
		missed:   counter("sublet_pleg_missed_total", "Changed pods that a listing found and the open event stream had not told of."),
	}
}

func (p *plegMetrics) all() []prometheus.Collector {
	return []prometheus.Collector{
		p.relist, p.interval, p.lastSeen, p.opened, p.broken, p.open, p.inspect, p.waited, p.failures, p.hints, p.missed,
	}
}

// PLEG returns the hooks of a pleg.Generator.
func (m *Metrics) PLEG() pleg.Hooks {
	p := &m.pleg
	var mu sync.Mutex
	var last time.Time // when the listing before began
	return pleg.Hooks{
		Relisted: func(took time.Duration, _, _ int, err error) {
			now := time.Now()
			began := now.Add(-took)
			p.relist.Observe(took.Seconds())
			mu.Lock()
			if !last.IsZero() {
				p.interval.Observe(began.Sub(last).Seconds())
			}
			last = began
			mu.Unlock()
			p.looked("list", now, err)
		},
		Inspected: func(_ types.UID, waited, took time.Duration, err error) {
			p.inspect.Observe(took.Seconds())
			p.waited.Observe(waited.Seconds())
			p.looked("inspect", time.Now(), err)
		},
		StreamChanged: func(open bool, _ error) {
			p.open.Set(truth(open))
			if open {
				p.opened.Inc()
			} else {
				p.broken.Inc()
			}
		},
		RuntimeEventReceived: func(types.UID) { p.hints.Inc() },
		RuntimeEventsMissed:  func(pods int) { p.missed.Add(float64(pods)) },
	}
}

func (p *plegMetrics) looked(how string, now time.Time, err error) {
	if err != nil {
		p.failures.WithLabelValues(how).Inc()
		return
	}
	p.lastSeen.Set(float64(now.UnixMilli()) / 1000)
}
