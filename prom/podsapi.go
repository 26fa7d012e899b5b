package prom

import "github.com/prometheus/client_golang/prometheus"

// podsAPIMetrics are about the pods API.
type podsAPIMetrics struct {
	total    *prometheus.CounterVec
	requests map[string]*prometheus.CounterVec // by method
	dropped  prometheus.Counter
}

func newPodsAPI() podsAPIMetrics {
	of := func(name, calls string) *prometheus.CounterVec {
		return counters("kubelet_pod_requests_"+name, calls+" of the pods API that have ended, by version and gRPC status.", "server_api_version", "status_code")
	}
	return podsAPIMetrics{
		total: of("total", "Calls"),
		requests: map[string]*prometheus.CounterVec{
			"ListPods": of("list_total", "Lists"), "GetPod": of("get_total", "Calls of GetPod"), "WatchPods": of("watch_total", "Watches"),
		},
		dropped: counter("kubelet_pod_watch_events_dropped_total", "States of pods that watches of the pods API were too slow for."),
	}
}

func (g *podsAPIMetrics) all() []prometheus.Collector {
	all := []prometheus.Collector{g.total, g.dropped}
	for _, c := range g.requests {
		all = append(all, c)
	}
	return all
}

// PodsAPIRequested is the hook for podsapi.Hooks.Requested.
func (m *Metrics) PodsAPIRequested(version, method, code string) {
	requests, ok := m.podsAPI.requests[method]
	if !ok {
		return
	}
	m.podsAPI.total.WithLabelValues(version, code).Inc()
	requests.WithLabelValues(version, code).Inc()
}

// PodsAPIStatesMissed is the hook for podsapi.Hooks.StatesMissed.
func (m *Metrics) PodsAPIStatesMissed(count int) { m.podsAPI.dropped.Add(float64(count)) }
