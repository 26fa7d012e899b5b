package otel_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/embedded"
	"go.opentelemetry.io/otel/trace/noop"
)

// recorder is a TracerProvider that keeps the spans in memory.
type recorder struct {
	embedded.TracerProvider

	mu    sync.Mutex // guards the rest, and the spans
	scope string
	spans []*span
}

// Tracer implements trace.TracerProvider.
func (r *recorder) Tracer(name string, opts ...trace.TracerOption) trace.Tracer {
	cfg := trace.NewTracerConfig(opts...)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.scope = name + " " + cfg.SchemaURL()
	return &tracer{recorder: r}
}

type tracer struct {
	embedded.Tracer

	recorder *recorder
}

// Start implements trace.Tracer.
func (t *tracer) Start(ctx context.Context, name string, opts ...trace.SpanStartOption) (context.Context, trace.Span) {
	r, cfg := t.recorder, trace.NewSpanStartConfig(opts...)
	r.mu.Lock()
	defer r.mu.Unlock()
	parent := trace.SpanContextFromContext(ctx)
	s := &span{Span: noop.Span{}, recorder: r, name: name, parent: parent, attributes: cfg.Attributes(), startTime: time.Now()}
	id := trace.SpanContextConfig{TraceID: parent.TraceID(), SpanID: spanID(len(r.spans) + 1), TraceFlags: trace.FlagsSampled}
	if !parent.IsValid() {
		id.TraceID = trace.TraceID{byte((len(r.spans) + 1) >> 8), byte(len(r.spans) + 1)}
	}
	s.context = trace.NewSpanContext(id)
	r.spans = append(r.spans, s)
	return trace.ContextWithSpan(ctx, s), s
}

func spanID(n int) trace.SpanID { return trace.SpanID{byte(n >> 16), byte(n >> 8), byte(n)} }

type span struct {
	trace.Span // for methods that are not used

	recorder   *recorder
	name       string
	context    trace.SpanContext
	parent     trace.SpanContext
	attributes []attribute.KeyValue
	status     codes.Code
	text       string
	startTime  time.Time
	duration   time.Duration
	ended      int
}

// SpanContext implements trace.Span.
func (s *span) SpanContext() trace.SpanContext { return s.context }

// IsRecording implements trace.Span.
func (s *span) IsRecording() bool { return true }

// SetAttributes implements trace.Span.
func (s *span) SetAttributes(kv ...attribute.KeyValue) {
	s.recorder.mu.Lock()
	defer s.recorder.mu.Unlock()
	s.attributes = append(s.attributes, kv...)
}

// SetStatus implements trace.Span.
func (s *span) SetStatus(code codes.Code, text string) {
	s.recorder.mu.Lock()
	defer s.recorder.mu.Unlock()
	s.status, s.text = code, text
}

// End implements trace.Span.
func (s *span) End(...trace.SpanEndOption) {
	s.recorder.mu.Lock()
	defer s.recorder.mu.Unlock()
	s.ended++
	s.duration = time.Since(s.startTime)
}

func (s *span) value(key string) string {
	for _, kv := range s.attributes {
		if string(kv.Key) == key {
			return kv.Value.String()
		}
	}
	return ""
}

// String returns name, duration, status and the attributes that the identity of the pod
// leaves over.
func (s *span) String() string {
	text := s.name
	if s.duration > 0 {
		text += fmt.Sprint(" ", s.duration)
	}
	if s.status == codes.Error {
		text += fmt.Sprintf(" ERROR %q", s.text)
	}
	if s.ended != 1 {
		text += fmt.Sprint(" ENDED ", s.ended)
	}
	var attributes []string
	for _, kv := range s.attributes {
		switch key := string(kv.Key); key {
		case "k8s.pod.uid", "k8s.namespace.name", "k8s.pod.name", "container.id", "sublet.sandbox.id", "sublet.sync.wait":
		default:
			attributes = append(attributes, strings.TrimPrefix(key, "sublet.")+"="+kv.Value.String())
		}
	}
	slices.Sort(attributes)
	if len(attributes) > 0 {
		text += " {" + strings.Join(attributes, " ") + "}"
	}
	return text
}

// tree returns the spans of a pod, children indented, in the order of their start;
// siblings that start together are sorted.
func (r *recorder) tree(t *testing.T, pod string) string {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	var b strings.Builder
	var write func(parent trace.SpanID, indent string)
	write = func(parent trace.SpanID, indent string) {
		var spans []*span
		for _, s := range r.spans {
			if s.parent.SpanID() == parent && s.value("k8s.pod.name") == pod {
				spans = append(spans, s)
			}
		}
		slices.SortStableFunc(spans, func(a, b *span) int {
			if c := a.startTime.Compare(b.startTime); c != 0 || indent == "" {
				return c
			}
			return strings.Compare(a.String(), b.String())
		})
		for _, s := range spans {
			fmt.Fprintln(&b, indent+s.String())
			write(s.context.SpanID(), indent+"  ")
		}
	}
	write(trace.SpanID{}, "")
	return b.String()
}

// open returns the names of the spans that have not ended exactly once.
func (r *recorder) open() (names []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range r.spans {
		if s.ended != 1 {
			names = append(names, fmt.Sprint(s.name, " ", s.ended))
		}
	}
	return names
}

// count returns how many spans there are of each name.
func (r *recorder) count(names ...string) map[string]int {
	r.mu.Lock()
	defer r.mu.Unlock()
	counts := map[string]int{}
	for _, s := range r.spans {
		if slices.Contains(names, s.name) {
			counts[s.name]++
		}
	}
	return counts
}
