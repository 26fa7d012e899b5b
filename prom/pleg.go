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
	lastResponse, open                prometheus.Gauge
	failures                          *prometheus.CounterVec
	opened, broken, events, missed    prometheus.Counter
}

func newPleg() plegMetrics {
	return plegMetrics{
		relist:       histogram("kubelet_pleg_relist_duration_seconds", "Duration of relists.", prometheus.DefBuckets),
		interval:     histogram("kubelet_pleg_relist_interval_seconds", "Time from one relist to the next.", prometheus.DefBuckets),
		lastResponse: gauge("kubelet_pleg_last_seen_seconds", "Time of the last successful query of the runtime, in seconds since 1970."),
		opened:       counter("kubelet_evented_pleg_connection_success_count", "Times the event stream of the runtime was opened."),
		broken:       counter("kubelet_evented_pleg_connection_error_count", "Times the event stream of the runtime broke or could not be opened."),
		open:         gauge("sublet_pleg_stream_open", "1 while the event stream of the runtime is open."),
		inspect:      histogram("sublet_pleg_inspect_duration_seconds", "Duration of pod inspections.", quick()),
		waited:       histogram("sublet_pleg_inspect_wait_seconds", "Time that a pod waited for its inspection.", quick()),
		failures:     counters("sublet_pleg_errors_total", "Failed runtime queries, by operation: list or inspect.", "operation"),
		events:       counter("sublet_pleg_runtime_events_total", "Runtime events received."),
		missed:       counter("sublet_pleg_missed_events_total", "Changed pods that a relist found without a runtime event while the event stream was open."),
	}
}

func (p *plegMetrics) all() []prometheus.Collector {
	return []prometheus.Collector{
		p.relist, p.interval, p.lastResponse, p.opened, p.broken, p.open, p.inspect, p.waited, p.failures, p.events, p.missed,
	}
}

// PLEG returns the hooks of a pleg.Generator.
func (m *Metrics) PLEG() pleg.Hooks {
	p := &m.pleg
	var mu sync.Mutex
	var last time.Time // when the previous relist started
	return pleg.Hooks{
		Relisted: func(duration time.Duration, _, _ int, err error) {
			now := time.Now()
			startTime := now.Add(-duration)
			p.relist.Observe(duration.Seconds())
			mu.Lock()
			if !last.IsZero() {
				p.interval.Observe(startTime.Sub(last).Seconds())
			}
			last = startTime
			mu.Unlock()
			p.queried("list", now, err)
		},
		Inspected: func(_ types.UID, waited, duration time.Duration, err error) {
			p.inspect.Observe(duration.Seconds())
			p.waited.Observe(waited.Seconds())
			p.queried("inspect", time.Now(), err)
		},
		StreamChanged: func(open bool, _ error) {
			p.open.Set(boolValue(open))
			if open {
				p.opened.Inc()
			} else {
				p.broken.Inc()
			}
		},
		RuntimeEventReceived: func(types.UID) { p.events.Inc() },
		RuntimeEventsMissed:  func(pods int) { p.missed.Add(float64(pods)) },
	}
}

func (p *plegMetrics) queried(operation string, now time.Time, err error) {
	if err != nil {
		p.failures.WithLabelValues(operation).Inc()
		return
	}
	p.lastResponse.Set(float64(now.UnixMilli()) / 1000)
}
