package otel_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/trace/noop"
	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent"
	"github.com/sublet-dev/agent/node"
	"github.com/sublet-dev/agent/otel"
	"github.com/sublet-dev/agent/podsource"
	"github.com/sublet-dev/agent/podworkers"
	"github.com/sublet-dev/agent/prom"
	"github.com/sublet-dev/agent/runtime"
	"github.com/sublet-dev/agent/runtime/cri"
)

// BenchmarkTracing is the cost of the span of a container's start, without that of the SDK.
func BenchmarkTracing(b *testing.B) {
	tracing, err := otel.New(otel.Config{TracerProvider: noop.NewTracerProvider()})
	require.NoError(b, err)
	op := runtime.Operation{Type: runtime.OperationStartContainer, Pod: web, Container: "main", ContainerID: "c1", Image: "app:1"}
	b.ReportAllocs()
	for b.Loop() {
		tracing.OperationEnded(tracing.OperationStarted(b.Context(), op), op, 0, nil)
	}
}

// podSink reports when its pod runs and when it is deleted.
type podSink struct {
	running chan bool
	was     bool
}

// SetStatus implements status.Sink.
func (s *podSink) SetStatus(_ context.Context, _ *corev1.Pod, st corev1.PodStatus) error {
	if runs := st.Phase == corev1.PodRunning; runs && !s.was {
		s.was = true
		s.running <- true
	}
	return nil
}

// DeleteStatus implements status.Deleter.
func (s *podSink) DeleteStatus(context.Context, *corev1.Pod) error {
	s.was = false
	s.running <- false
	return nil
}

// BenchmarkObservers is the cost of a pod's start and removal on the simulated runtime, by
// the observers. The time is mostly that of fsync; the allocations tell observers apart.
func BenchmarkObservers(b *testing.B) {
	metrics, err := prom.New(prometheus.NewRegistry())
	require.NoError(b, err)
	tracing, err := otel.New(otel.Config{TracerProvider: noop.NewTracerProvider()})
	require.NoError(b, err)
	observers := map[string]agent.Hooks{
		"prom": {
			Sources: metrics.Sources(), SyncLoop: metrics.SyncLoop(), PodManager: metrics.PodManager(), Housekeeper: metrics.Housekeeper(),
			PodWorkers: metrics.PodWorkers(), PLEG: metrics.PLEG(), Status: metrics.Status(), Probe: metrics.Probe(),
			CRI: cri.Hooks{Call: metrics.RuntimeCall},
		},
		"otel": {
			PodWorkers: tracing.PodWorkers(),
			CRI:        cri.Hooks{OperationStarted: tracing.OperationStarted, OperationEnded: tracing.OperationEnded},
		},
		"empty": {PodWorkers: podworkers.Hooks{PodFinished: nil}},
	}
	for _, names := range [][]string{{}, {"empty"}, {"prom"}, {"otel"}, {"prom", "otel"}} {
		b.Run(fmt.Sprint("observers=", names), func(b *testing.B) {
			memory, sink := podsource.NewMemory(), &podSink{running: make(chan bool, 1)}
			opts := []agent.Option{
				agent.WithSimulatedRuntime(), agent.WithNode(node.Config{DisableCgroups: true}),
				agent.WithSource("memory", memory), agent.WithStatusSink(sink),
			}
			for _, name := range names {
				opts = append(opts, agent.WithHooks(observers[name]))
			}
			a, err := agent.New(opts...)
			require.NoError(b, err)
			ctx, cancel := context.WithCancel(b.Context())
			done := make(chan error)
			go func() { done <- a.Run(ctx) }()
			b.ReportAllocs()
			for b.Loop() {
				memory.Put(newPod("web"))
				require.True(b, <-sink.running)
				memory.Delete("default", "web")
				require.False(b, <-sink.running)
			}
			cancel()
			require.NoError(b, <-done)
		})
	}
}
