package otel_test

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	otelcodes "go.opentelemetry.io/otel/codes"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sublet-dev/agent/otel"
	"github.com/sublet-dev/agent/podworkers"
	"github.com/sublet-dev/agent/runtime"
)

func newTracing(tb testing.TB) (*otel.Tracing, *recorder) {
	tb.Helper()
	r := &recorder{}
	tracing, err := otel.New(otel.Config{TracerProvider: r})
	require.NoError(tb, err)
	return tracing, r
}

func TestNew(t *testing.T) {
	_, err := otel.New(otel.Config{})
	require.EqualError(t, err, "otel: Config.TracerProvider: required")
	_, r := newTracing(t)
	assert.Equal(t, "github.com/sublet-dev/agent/otel "+semconv.SchemaURL, r.scope)
}

var web = &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "uid", Namespace: "default", Name: "web"}}

// Attributes have the names of the semantic conventions.
func TestTracing_Attributes(t *testing.T) {
	digest := "sha256:" + strings.Repeat("0", 64)
	for _, tt := range []struct {
		image, name, tags, digests string
	}{
		{"app", "app", "", ""},
		{"app:1", "app", `["1"]`, ""},
		{"localhost:5000/a/b", "localhost:5000/a/b", "", ""},
		{"localhost:5000/a/b:2", "localhost:5000/a/b", `["2"]`, ""},
		{"a/b@" + digest, "a/b", "", `["a/b@` + digest + `"]`},
		{"r:1/b:3@" + digest, "r:1/b", `["3"]`, `["r:1/b@` + digest + `"]`},
	} {
		tracing, r := newTracing(t)
		op := runtime.Operation{
			Type: runtime.OperationKillContainer, Pod: web, Container: "main", ContainerID: "c1", SandboxID: "s1", Image: tt.image,
			GracePeriod: 1500 * time.Millisecond, Reason: "Evicted",
		}
		tracing.OperationEnded(tracing.OperationStarted(t.Context(), op), op, 0, nil)
		s := r.spans[0]
		for key, want := range map[string]string{
			string(semconv.K8SPodUIDKey): "uid", string(semconv.K8SNamespaceNameKey): "default", string(semconv.K8SPodNameKey): "web",
			string(semconv.K8SContainerNameKey): "main", string(semconv.ContainerIDKey): "c1", "sublet.sandbox.id": "s1",
			string(semconv.ContainerImageNameKey): tt.name, string(semconv.ContainerImageTagsKey): tt.tags,
			string(semconv.ContainerImageRepoDigestsKey): tt.digests,
			"sublet.termination.grace_period":            "1.5", "sublet.termination.reason": "Evicted",
		} {
			assert.Equal(t, want, s.value(key), "%s of %s", key, tt.image)
		}
	}
}

// What an operation creates is known when it has ended.
func TestTracing_CreatedObjects(t *testing.T) {
	for _, tt := range []struct {
		opType    runtime.OperationType
		key, want string
	}{
		{runtime.OperationCreateSandbox, "sublet.sandbox.id", "s1"},
		{runtime.OperationCreateContainer, "container.id", "c1"},
		{runtime.OperationStartContainer, "container.id", ""},
	} {
		tracing, r := newTracing(t)
		op := runtime.Operation{Type: tt.opType, Pod: web}
		ctx := tracing.OperationStarted(t.Context(), op)
		assert.Empty(t, r.spans[0].value(tt.key))
		op.SandboxID, op.ContainerID = "s1", "c1"
		tracing.OperationEnded(ctx, op, 0, nil)
		assert.Equal(t, tt.want, r.spans[0].value(tt.key), tt.opType)
	}
}

func TestTracing_Sync(t *testing.T) {
	evicted := podworkers.SyncCall{Pod: web, Phase: podworkers.Terminating, Orphan: true}
	evicted.Termination = runtime.Termination{GracePeriod: 30 * time.Second, Reason: "Evicted", Message: "not for traces"}
	for _, tt := range []struct {
		call   podworkers.SyncCall
		result runtime.SyncResult
		err    error
		want   string
	}{
		{podworkers.SyncCall{Pod: web}, runtime.SyncResult{}, nil, "sync pod"},
		{podworkers.SyncCall{Pod: web}, runtime.SyncResult{Unchanged: true}, nil, "sync pod {sync.unchanged=true}"},
		{podworkers.SyncCall{Pod: web}, runtime.SyncResult{Unchanged: true}, errors.New("no luck"), `sync pod ERROR "no luck" {error.type=_OTHER}`},
		{evicted, runtime.SyncResult{}, nil, "terminate pod {pod.orphan=true termination.grace_period=30 termination.reason=Evicted}"},
		{podworkers.SyncCall{Pod: web, Phase: podworkers.Terminated}, runtime.SyncResult{}, nil, "finish pod {termination.grace_period=0}"},
		{podworkers.SyncCall{Pod: web, Phase: podworkers.Finished}, runtime.SyncResult{}, nil, "finish pod {termination.grace_period=0}"},
		{podworkers.SyncCall{}, runtime.SyncResult{}, nil, "sync pod"},
	} {
		tracing, r := newTracing(t)
		h := tracing.PodWorkers()
		h.SyncEnded(h.SyncStarted(t.Context(), tt.call), tt.call, time.Second, tt.result, tt.err)
		s := r.spans[0]
		s.duration = 0
		assert.Equal(t, tt.want, s.String())
		assert.Empty(t, s.value("sublet.sync.wait"))
	}
	tracing, r := newTracing(t)
	h := tracing.PodWorkers()
	h.SyncStarted(t.Context(), podworkers.SyncCall{Pod: web, RequestedAt: time.Now().Add(time.Hour)})
	assert.Equal(t, "0", r.spans[0].value("sublet.sync.wait"))
}

// An end without a start ends no other span.
func TestTracing_EndWithoutStart(t *testing.T) {
	tracing, r := newTracing(t)
	h := tracing.PodWorkers()
	op := runtime.Operation{Type: runtime.OperationPullImage, Pod: web}
	h.SyncEnded(t.Context(), podworkers.SyncCall{}, 0, runtime.SyncResult{}, nil)
	tracing.OperationEnded(t.Context(), op, 0, nil)
	assert.Empty(t, r.spans)
	ctx := h.SyncStarted(t.Context(), podworkers.SyncCall{Pod: web})
	tracing.OperationEnded(ctx, op, 0, nil)
	assert.Zero(t, r.spans[0].ended)
	other, _ := newTracing(t)
	other.PodWorkers().SyncEnded(ctx, podworkers.SyncCall{}, 0, runtime.SyncResult{}, nil)
	assert.Zero(t, r.spans[0].ended)
}

type secret struct{ error }

func (secret) Redacted() string { return "[redacted]" }

func TestTracing_Errors(t *testing.T) {
	for _, tt := range []struct {
		err      error
		errType  string
		wantText string
	}{
		{fmt.Errorf("call: %w", podworkers.ErrSyncerPanicked), "panic", "call: syncer panicked"},
		{errors.Join(errors.New("x"), runtime.ErrDeadlineExceeded), "deadline_exceeded", "x\ndeadline exceeded"},
		{runtime.ErrUnavailable, "unavailable", "runtime unavailable"},
		{runtime.ErrUnauthorized, "unauthorized", "unauthorized"},
		{runtime.ErrNotFound, "not_found", "not found"},
		{runtime.ErrAlreadyExists, "already_exists", "already exists"},
		{runtime.ErrNotOwner, "not_owner", "belongs to another owner"},
		{runtime.ErrNotReady, "not_ready", "not ready"},
		{runtime.ErrBackOff, "back_off", "waiting for a back-off to end"},
		{runtime.ErrUnsupported, "unsupported", "not supported by the runtime"},
		{runtime.ErrInvalid, "invalid", "invalid"},
		{context.Canceled, "_OTHER", "context canceled"}, // a call that was not cancelled by the agent
		{secret{errors.New("s3cret")}, "_OTHER", "[redacted]"},
		{secret{errors.New("")}, "_OTHER", ""},
		{fmt.Errorf("a: %w", errors.Join(errors.New("b"), fmt.Errorf("c: %w", secret{errors.New("s3cret")}))), "_OTHER", "a: b\nc: [redacted]"},
		{errors.New(strings.Repeat("x", 512)), "_OTHER", strings.Repeat("x", 512)},
		{errors.New(strings.Repeat("x", 511) + "é"), "_OTHER", strings.Repeat("x", 511) + "..."},
	} {
		tracing, r := newTracing(t)
		op := runtime.Operation{Type: runtime.OperationPullImage}
		tracing.OperationEnded(tracing.OperationStarted(t.Context(), op), op, 0, tt.err)
		s := r.spans[0]
		assert.Equal(t, otelcodes.Error, s.status)
		assert.Equal(t, tt.errType, s.value(string(semconv.ErrorTypeKey)), tt.err)
		assert.Equal(t, tt.wantText, s.text)
		assert.True(t, utf8.ValidString(s.text))
	}
	tracing, r := newTracing(t)
	op := runtime.Operation{Type: runtime.OperationPullImage}
	ctx, cancel := context.WithTimeout(t.Context(), -1)
	defer cancel()
	tracing.OperationEnded(tracing.OperationStarted(ctx, op), op, 0, runtime.ErrDeadlineExceeded)
	assert.Equal(t, otelcodes.Error, r.spans[0].status, "a timeout is an error")
}

// Who does not import the package does not get OpenTelemetry with it.
func TestOpenTelemetryOnlyHere(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", "..", "../prom", "../server").Output()
	require.NoError(t, err)
	assert.NotContains(t, string(out), "go.opentelemetry.io")
	out, err = exec.Command("go", "list", "-deps", ".").Output()
	require.NoError(t, err)
	for _, no := range []string{"google.golang.org/grpc", "go.opentelemetry.io/otel/sdk", "go.opentelemetry.io/otel/metric"} {
		assert.NotContains(t, string(out), no)
	}
}
