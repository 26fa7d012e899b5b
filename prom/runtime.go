package prom

import (
	"errors"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sublet-dev/agent/runtime"
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
// the CRI call. A runtime that cannot stream a list has not failed: the list that is
// requested instead is counted.
func (m *Metrics) RuntimeCall(rpc string, duration time.Duration, err error) {
	if strings.HasPrefix(rpc, "Stream") && errors.Is(err, runtime.ErrUnsupported) {
		return
	}
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
// in snake case, with podsandbox as one word. A list is one operation, whether the
// runtime answers it as a whole or streams it.
func operationOf(rpc string) string {
	switch rpc {
	case "UpdateContainerResources":
		return "update_container"
	case "StreamPodSandboxes":
		return "list_podsandbox"
	case "StreamContainers":
		return "list_containers"
	case "StreamImages":
		return "list_images"
	case "StreamContainerStats":
		return "list_container_stats"
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
