// Package otel creates OpenTelemetry spans from the hooks of an agent's components, as the
// kubelet does with KubeletTracing (KEP-2831).
//
// Guarantees:
//
//   - Spans go to the given TracerProvider and nowhere else. The package needs the API of
//     OpenTelemetry only; the SDK, the sampling and the exporter are the program's.
//   - It has no state: a span is in the context of its call. A span whose end is never
//     reported is garbage collected with that context.
//   - Spans contain no environment, command or credential. Texts of errors are truncated,
//     and those of lifecycle hooks, which can quote a command, are left out.
//
// Each call of a pod worker is a span: "sync pod", "terminate pod" or "finish pod". The
// operations of the runtime in that call are children: "pull image", "create sandbox", "create
// container", "start container", "run postStart hook", "kill container", "run preStop
// hook", "stop sandbox". docs/tracing.md lists the attributes.
//
//	tracing, err := otel.New(otel.Config{TracerProvider: provider})
//	if err != nil {
//		return err
//	}
//	a, err := agent.New(agent.WithHooks(agent.Hooks{
//		PodWorkers: tracing.PodWorkers(),
//		CRI:        cri.Hooks{OperationStarted: tracing.OperationStarted, OperationEnded: tracing.OperationEnded},
//	}))
//
// The calls of a runtime get the context of the span around them, so that the spans of an
// instrumented connection, for instance with otelgrpc, are children of it:
//
//	cc, err := cri.Dial(endpoint, grpc.WithStatsHandler(otelgrpc.NewClientHandler()))
package otel
