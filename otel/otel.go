package otel

import (
	"context"
	"errors"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/sublet-dev/agent/podworkers"
	"github.com/sublet-dev/agent/runtime"
)

// scopeName is the name of the tracer.
const scopeName = "github.com/sublet-dev/agent/otel"

// Config configures Tracing. TracerProvider is required.
type Config struct {
	TracerProvider trace.TracerProvider
}

// Tracing makes the spans of one agent. Its hooks may be called from any goroutine.
type Tracing struct {
	tracer trace.Tracer
}

// New returns a Tracing with a tracer of the provider.
func New(cfg Config) (*Tracing, error) {
	if cfg.TracerProvider == nil {
		return nil, errors.New("otel: Config.TracerProvider: required")
	}
	return &Tracing{tracer: cfg.TracerProvider.Tracer(scopeName, trace.WithSchemaURL(schemaURL))}, nil
}

// PodWorkers returns the hooks of podworkers.Workers. The span of a call is a child of the
// span in the context of Workers.Run, if there is one, and else the root of a trace.
func (t *Tracing) PodWorkers() podworkers.Hooks {
	return podworkers.Hooks{
		SyncStarted: func(ctx context.Context, call podworkers.SyncCall) context.Context {
			return t.start(ctx, "", syncName(call.Phase), syncAttributes(call))
		},
		SyncEnded: func(ctx context.Context, _ podworkers.SyncCall, _ time.Duration, result runtime.SyncResult, err error) {
			if err == nil && result.Unchanged {
				t.end(ctx, "", nil, keyUnchanged.Bool(true))
				return
			}
			t.end(ctx, "", err)
		},
	}
}

// OperationStarted is the hook for cri.Hooks.OperationStarted. A runtime of another kind
// can call it before an operation that it makes in ctx.
func (t *Tracing) OperationStarted(ctx context.Context, op runtime.Operation) context.Context {
	return t.start(ctx, op.Type, string(op.Type), operationAttributes(op))
}

// OperationEnded is the hook for cri.Hooks.OperationEnded. It takes the context that
// OperationStarted returned.
func (t *Tracing) OperationEnded(ctx context.Context, op runtime.Operation, _ time.Duration, err error) {
	t.end(ctx, op.Type, err, createdAttributes(op)...)
}

// spanKey is the context key of a span. Another observer may have put its own span into
// the context after it.
type spanKey struct {
	tracing   *Tracing
	operation runtime.OperationType // empty for a call of a pod worker
}

func (t *Tracing) start(ctx context.Context, operation runtime.OperationType, name string, attributes []attribute.KeyValue) context.Context {
	ctx, span := t.tracer.Start(ctx, name, trace.WithAttributes(attributes...))
	return context.WithValue(ctx, spanKey{t, operation}, span)
}

// end ends the span of ctx, if it has one. That a call was cancelled is no error: the agent
// stops, or a newer request replaces the call.
func (t *Tracing) end(ctx context.Context, operation runtime.OperationType, err error, attributes ...attribute.KeyValue) {
	span, ok := ctx.Value(spanKey{t, operation}).(trace.Span)
	if !ok {
		return
	}
	switch {
	case err == nil:
	case errors.Is(ctx.Err(), context.Canceled):
		attributes = append(attributes, keyCancelled.Bool(true))
	default:
		attributes = append(attributes, keyErrorType.String(errorType(err)))
		span.SetStatus(codes.Error, describe(err))
	}
	span.SetAttributes(attributes...)
	span.End()
}
