package otel_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"regexp"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sublet-dev/agent"
	"github.com/sublet-dev/agent/node"
	"github.com/sublet-dev/agent/otel"
	"github.com/sublet-dev/agent/podsource"
	"github.com/sublet-dev/agent/podworkers"
	"github.com/sublet-dev/agent/prom"
	"github.com/sublet-dev/agent/runtime"
	"github.com/sublet-dev/agent/runtime/cri"
	"github.com/sublet-dev/agent/runtime/embedded"
	"github.com/sublet-dev/agent/runtime/embedded/simulated"
)

// newPod returns a pod with a container "main", scripted by "key=value".
func newPod(name string, script ...string) *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", Annotations: map[string]string{}},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{
			Name: "main", Image: "registry.example/app:1",
			Env: []corev1.EnvVar{{Name: "PASSWORD", Value: "s3cret"}}, Command: []string{"serve", "--token=s3cret"},
		}}},
	}
	for _, s := range script {
		key, value, _ := strings.Cut(s, "=")
		pod.Annotations[simulated.ScriptPrefix+key] = value
	}
	return pod
}

// faults is a connection whose calls fail as fail says.
type faults struct {
	*grpc.ClientConn

	fail func(ctx context.Context, rpc string) error
}

// Invoke implements grpc.ClientConnInterface.
func (f *faults) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	if err := f.fail(ctx, method[strings.LastIndexByte(method, '/')+1:]); err != nil {
		return err
	}
	return f.ClientConn.Invoke(ctx, method, args, reply, opts...)
}

func hooksOf(t *testing.T, r *recorder) agent.Hooks {
	t.Helper()
	tracing, err := otel.New(otel.Config{TracerProvider: r})
	require.NoError(t, err)
	return agent.Hooks{
		PodWorkers: tracing.PodWorkers(),
		CRI:        cri.Hooks{OperationStarted: tracing.OperationStarted, OperationEnded: tracing.OperationEnded},
	}
}

// runAgent runs an agent on a simulated runtime. The result stops it.
func runAgent(t *testing.T, memory *podsource.Memory, fail func(ctx context.Context, rpc string) error, observers ...agent.Hooks) (stop func()) {
	t.Helper()
	opts := []agent.Option{
		agent.WithSource("memory", memory), agent.WithNode(node.Config{DisableCgroups: true}), agent.WithRootDir(t.TempDir()),
	}
	for _, o := range observers {
		opts = append(opts, agent.WithHooks(o))
	}
	closeAll := func() {}
	if fail == nil {
		opts = append(opts, agent.WithSimulatedRuntime())
	} else {
		inside, err := embedded.New(embedded.Config{Executor: simulated.New(simulated.Config{}), Grace: -1})
		require.NoError(t, err)
		cc, err := inside.Dial()
		require.NoError(t, err)
		rt, err := cri.New(&faults{ClientConn: cc.ClientConn, fail: fail}, cri.Config{Hooks: observers[0].CRI})
		require.NoError(t, err)
		opts = append(opts, agent.WithRuntime(rt))
		closeAll = func() {
			assert.NoError(t, cc.Close())
			assert.NoError(t, inside.Close())
		}
	}
	a, err := agent.New(opts...)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- a.Run(ctx) }()
	return func() {
		cancel()
		require.NoError(t, <-done)
		closeAll()
		synctest.Wait()
	}
}

// A pod's life is one trace a sync: what the runtime does is below the sync that it does
// it for.
func TestTracing_PodLife(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, memory := &recorder{}, podsource.NewMemory()
		stop := runAgent(t, memory, nil, hooksOf(t, r))
		pod := newPod("web", "start-delay=2s", "stop-after=3s")
		grace := int64(20)
		pod.Spec.TerminationGracePeriodSeconds = &grace
		pod.Spec.Containers[0].Lifecycle = &corev1.Lifecycle{
			PostStart: &corev1.LifecycleHandler{Sleep: &corev1.SleepAction{Seconds: 1}},
			PreStop:   &corev1.LifecycleHandler{Sleep: &corev1.SleepAction{Seconds: 5}},
		}
		memory.Put(pod)
		time.Sleep(10 * time.Second)
		memory.Delete("default", "web")
		time.Sleep(20 * time.Second)
		stop()
		assert.Equal(t, `sync pod 3s
  create container {`+image+`}
  create sandbox
  pull image {container.image.name=registry.example/app container.image.tags=["1"]}
  start container 2s {`+image+`}
  run postStart hook 1s {`+image+`}
terminate pod 8s {termination.grace_period=20}
  kill container 8s {`+image+` termination.grace_period=20 termination.reason=PodDeleted}
    run preStop hook 5s {`+image+` termination.grace_period=20 termination.reason=PodDeleted}
  stop sandbox {termination.reason=PodDeleted}
finish pod {termination.grace_period=20}
`, strings.ReplaceAll(r.tree(t, "web"), idle, ""))
		assert.Contains(t, r.tree(t, "web"), idle)
		assert.Empty(t, r.open())
		for _, s := range r.spans {
			assert.NotEmpty(t, s.value("k8s.pod.uid"), s)
			assert.Equal(t, "default", s.value("k8s.namespace.name"), s)
			for _, kv := range s.attributes {
				assert.NotContains(t, kv.Value.String(), "s3cret")
			}
		}
	})
}

// idle is a sync that finds nothing to do. How many there are after a change depends on
// whether the runtime's event or the end of the sync is first.
const idle = "sync pod {sync.unchanged=true}\n"

// image is what the spans of the container "main" have.
const image = `container.image.name=registry.example/app container.image.tags=["1"] k8s.container.name=main`

// What fails has a status, and so has the sync that it fails. Commands and their output stay
// on the node.
func TestTracing_Failures(t *testing.T) {
	for _, tt := range []struct {
		name   string
		script []string
		hook   bool
		fail   string // a call of the runtime
		want   string
	}{
		{
			name: "pull", fail: "PullImage",
			want: `sync pod ERROR "container main: ErrImagePull: PullImage registry.example/app:1: no luck (NotFound)" {error.type=not_found}
  create sandbox
  pull image ERROR "PullImage registry.example/app:1: no luck (NotFound)" {container.image.name=registry.example/app container.image.tags=["1"] error.type=not_found}
`,
		},
		{
			name: "sandbox", fail: "RunPodSandbox",
			want: `sync pod ERROR "CreatePodSandboxError: RunPodSandbox: no luck (NotFound)" {error.type=not_found}
  create sandbox ERROR "RunPodSandbox: no luck (NotFound)" {error.type=not_found}
`,
		},
		{
			name: "container", fail: "CreateContainer",
			want: `sync pod ERROR "container main: CreateContainerError: CreateContainer main: no luck (NotFound)" {error.type=not_found}
  create container ERROR "CreateContainer main: no luck (NotFound)" {` + strings.Replace(image, " k8s", " error.type=not_found k8s", 1) + `}
  create sandbox
`,
		},
		{
			name: "start", script: []string{"start-error=no such file"},
			want: `sync pod ERROR "container main: RunContainerError: StartContainer ID: no such file (Unknown)" {error.type=_OTHER}
  create container {` + image + `}
  create sandbox
  start container ERROR "StartContainer ID: no such file (Unknown)" {` + strings.Replace(image, " k8s", " error.type=_OTHER k8s", 1) + `}
`,
		},
		{
			name: "hook", hook: true, script: []string{"exec-exit-code=1", "exec-output=s3cret"},
			want: `sync pod ERROR "container main: PostStartHookError: postStart hook: lifecycle hook failed with exit code 1" {error.type=_OTHER}
  create container {` + image + `}
  create sandbox
  kill container {` + image + ` termination.grace_period=30 termination.reason=FailedPostStartHook}
  run postStart hook ERROR "lifecycle hook failed with exit code 1" {` + strings.Replace(image, " k8s", " error.type=_OTHER k8s", 1) + `}
  start container {` + image + `}
`,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r, memory := &recorder{}, podsource.NewMemory()
				stop := runAgent(t, memory, func(_ context.Context, rpc string) error {
					if rpc == tt.fail {
						return status.Error(codes.NotFound, "no luck")
					}
					return nil
				}, hooksOf(t, r))
				pod := newPod("web", tt.script...)
				if tt.hook {
					pod.Spec.Containers[0].Lifecycle = &corev1.Lifecycle{
						PostStart: &corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: []string{"login", "s3cret"}}},
					}
				}
				memory.Put(pod)
				time.Sleep(time.Second)
				stop()
				first, _, _ := strings.Cut(r.tree(t, "web"), "\nsync pod")
				first = strings.TrimSuffix(first, "\n") + "\n"
				if tt.fail != "PullImage" { // the image is pulled while the sandbox is created
					first = regexp.MustCompile("  pull image .*\n").ReplaceAllString(first, "")
				}
				first = regexp.MustCompile("StartContainer .*: no such").ReplaceAllString(first, "StartContainer ID: no such")
				assert.Equal(t, tt.want, first)
				assert.NotContains(t, r.tree(t, "web"), "s3cret")
				assert.Empty(t, r.open())
			})
		})
	}
}

// A call that the end of the agent or a newer request cuts short is no error.
func TestTracing_CancelledIsNoError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, memory := &recorder{}, podsource.NewMemory()
		stop := runAgent(t, memory, nil, hooksOf(t, r))
		memory.Put(newPod("stopped", "start-hang=true"))
		time.Sleep(time.Second) // the first start is alone for a moment
		memory.Put(newPod("deleted", "start-hang=true"))
		time.Sleep(4 * time.Second)
		memory.Delete("default", "deleted")
		time.Sleep(15 * time.Second)
		stop()
		// PW-6: a start has 10 s more.
		cancelled := strings.Replace(image, "container", "cancelled=true container", 1)
		assert.Contains(t, r.tree(t, "stopped"), "sync pod 30s {cancelled=true}\n")
		assert.Contains(t, r.tree(t, "stopped"), "  start container 30s {"+cancelled+"}\n")
		assert.Contains(t, r.tree(t, "deleted"), "sync pod 14s {cancelled=true}\n")
		assert.Contains(t, r.tree(t, "deleted"), "  start container 14s {"+cancelled+"}\n")
		assert.Contains(t, r.tree(t, "deleted"), "terminate pod")
		assert.NotContains(t, r.tree(t, "stopped")+r.tree(t, "deleted"), "ERROR")
		assert.Empty(t, r.open())
	})
}

// The calls of a runtime are made in the context of the span around them.
func TestTracing_CallsJoinTrace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, memory := &recorder{}, podsource.NewMemory()
		var mu sync.Mutex
		in := map[string]string{}
		stop := runAgent(t, memory, func(ctx context.Context, rpc string) error {
			if s, ok := trace.SpanFromContext(ctx).(*span); ok {
				mu.Lock()
				defer mu.Unlock()
				in[rpc] = s.name
			}
			return nil
		}, hooksOf(t, r))
		memory.Put(newPod("web"))
		time.Sleep(time.Second)
		memory.Set()
		time.Sleep(time.Minute)
		stop()
		mu.Lock()
		defer mu.Unlock()
		for rpc, name := range map[string]string{
			"PullImage": "pull image", "RunPodSandbox": "create sandbox", "CreateContainer": "create container", "StartContainer": "start container",
			"StopContainer": "kill container", "StopPodSandbox": "stop sandbox", "RemovePodSandbox": "finish pod",
		} {
			assert.Equal(t, name, in[rpc], rpc)
		}
	})
}

// AG-8: metrics, traces and hooks of one's own observe the same.
func TestTracing_BesideOtherObservers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, other, registry := &recorder{}, &recorder{}, prometheus.NewRegistry()
		metrics, err := prom.New(registry)
		require.NoError(t, err)
		own := map[string]int{}
		var mu sync.Mutex
		memory := podsource.NewMemory()
		stop := runAgent(t, memory, nil, hooksOf(t, r),
			agent.Hooks{PodWorkers: metrics.PodWorkers(), CRI: cri.Hooks{Call: metrics.RuntimeCall}},
			agent.Hooks{PodWorkers: podworkers.Hooks{
				SyncStarted: func(context.Context, podworkers.SyncCall) context.Context { panic("own") },
				SyncEnded: func(_ context.Context, call podworkers.SyncCall, _ time.Duration, _ runtime.SyncResult, _ error) {
					mu.Lock()
					defer mu.Unlock()
					own[call.Phase.String()]++
				},
			}}, hooksOf(t, other))
		for i := range 20 {
			memory.Put(newPod(fmt.Sprint("pod-", i)))
		}
		time.Sleep(time.Minute)
		memory.Set()
		time.Sleep(time.Minute)
		stop()
		assert.Empty(t, r.open())
		assert.Empty(t, other.open())

		counted := map[string]int{}
		families, err := registry.Gather()
		require.NoError(t, err)
		for _, f := range families {
			if f.GetName() == "kubelet_pod_worker_duration_seconds" {
				for _, m := range f.GetMetric() {
					counted[m.GetLabel()[0].GetValue()+" pod"] = int(m.GetHistogram().GetSampleCount())
				}
			}
		}
		syncs := r.count("sync pod", "terminate pod", "finish pod")
		assert.Equal(t, counted, syncs)
		assert.Equal(t, map[string]int{"Syncing": syncs["sync pod"], "Terminating": syncs["terminate pod"], "Terminated": syncs["finish pod"]}, own)
		assert.Equal(t, 20, syncs["terminate pod"])
		for _, s := range other.spans {
			assert.True(t, s.parent.IsValid(), "the spans of the second are below those of the first: %s", s)
		}
		assert.Len(t, other.spans, len(r.spans))
	})
}

// With many pods that come, fail, change and go at the same time, every span ends once and
// has its pod's sync above it.
func TestTracing_ManyPods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, memory := &recorder{}, podsource.NewMemory()
		random := rand.New(rand.NewPCG(1, 2)) // calls come in another order each time anyway
		var mu sync.Mutex
		stop := runAgent(t, memory, func(_ context.Context, rpc string) error {
			mu.Lock()
			defer mu.Unlock()
			switch rpc {
			case "PullImage", "RunPodSandbox", "CreateContainer", "StartContainer", "StopContainer", "StopPodSandbox":
				if random.IntN(5) == 0 {
					return status.Error(codes.Unavailable, "no luck")
				}
			}
			return nil
		}, hooksOf(t, r))
		for round := range 10 {
			for i := range 50 {
				pod := newPod(fmt.Sprint("pod-", i), "start-delay=1s", "stop-after=2s")
				pod.Spec.Containers[0].Image = fmt.Sprint("app:", round)
				if (i+round)%3 == 0 {
					memory.Delete("default", pod.Name)
				} else {
					memory.Put(pod)
				}
			}
			time.Sleep(time.Duration(round) * time.Second)
		}
		stop()
		assert.Empty(t, r.open())
		byID := map[trace.SpanID]*span{}
		for _, s := range r.spans {
			byID[s.context.SpanID()] = s
		}
		for _, s := range r.spans {
			above := byID[s.parent.SpanID()]
			if strings.HasSuffix(s.name, " pod") {
				assert.Nil(t, above, s)
				continue
			}
			if assert.NotNil(t, above, s) {
				assert.Equal(t, above.value("k8s.pod.uid"), s.value("k8s.pod.uid"))
				assert.Equal(t, above.context.TraceID(), s.context.TraceID())
			}
		}
		assert.Greater(t, len(r.spans), 500)
	})
}
