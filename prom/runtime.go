package prom

import (
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

type runtimeMetrics struct {
	calls, failures          *prometheus.CounterVec
	duration                 *prometheus.HistogramVec
	podStarts, podStartFails prometheus.Counter
}

func newRuntime() runtimeMetrics {
	return runtimeMetrics{
		calls:         counters("kubelet_runtime_operations_total", "Calls to the runtime.", "operation_type"),
		failures:      counters("kubelet_runtime_operations_errors_total", "Calls to the runtime that failed.", "operation_type"),
		duration:      histograms("kubelet_runtime_operations_duration_seconds", "Duration of calls to the runtime.", ops(), "operation_type"),
		podStarts:     counter("kubelet_started_pods_total", "Attempts to create a pod sandbox."),
		podStartFails: counter("kubelet_started_pods_errors_total", "Failed attempts to create a pod sandbox."),
	}
}

func (r *runtimeMetrics) all() []prometheus.Collector {
	return []prometheus.Collector{r.calls, r.failures, r.duration, r.podStarts, r.podStartFails}
}

// RuntimeCall is the hook for runtime calls, for cri.Hooks.Call. rpc is the name of
// the CRI call.
func (m *Metrics) RuntimeCall(rpc string, duration time.Duration, err error) {
	r, op := &m.runtime, operationOf(rpc)
	r.calls.WithLabelValues(op).Inc()
	r.duration.WithLabelValues(op).Observe(duration.Seconds())
	if err != nil {
		r.failures.WithLabelValues(op).Inc()
	}
	if op == "run_podsandbox" {
		r.podStarts.Inc()
		if err != nil {
			r.podStartFails.Inc()
		}
	}
}

// operationOf returns the name that the kubelet has for an operation: the CRI call
// in snake case, with podsandbox as one word.
func operationOf(rpc string) string {
	if rpc == "UpdateContainerResources" {
		return "update_container"
	}
	var b strings.Builder
	for i, c := range rpc {
		if c < 'A' || c > 'Z' {
			b.WriteRune(c)
			continue
		}
		if i > 0 && !strings.HasSuffix(rpc[:i], "Pod") && !upper(rpc[i-1]) {
			b.WriteByte('_')
		}
		b.WriteRune(c + 'a' - 'A')
	}
	return b.String()
}

func upper(c byte) bool { return c >= 'A' && c <= 'Z' }
