package agent_test

import (
	"context"
	"log/slog"
	"reflect"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent"
	"github.com/sublet-dev/agent/imagegc"
	"github.com/sublet-dev/agent/internal/agenttest"
	"github.com/sublet-dev/agent/internal/logtest"
	"github.com/sublet-dev/agent/node"
	"github.com/sublet-dev/agent/podsource"
	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/status"
)

// panicking sets each function of hooks to one that panics, and counts its calls.
func panicking(t *testing.T, hooks reflect.Value, name string, called func(string)) {
	t.Helper()
	if hooks.Kind() == reflect.Struct {
		for i := range hooks.NumField() {
			panicking(t, hooks.Field(i), name+"."+hooks.Type().Field(i).Name, called)
		}
		return
	}
	hooks.Set(reflect.MakeFunc(hooks.Type(), func([]reflect.Value) []reflect.Value {
		called(name)
		panic("hook " + name)
	}))
}

// clumsy panics the first few times that it is called.
type clumsy struct{ calls atomic.Int32 }

func (c *clumsy) check(what string) {
	if c.calls.Add(1) <= 3 {
		panic(what)
	}
}

type clumsySource struct {
	clumsy
	podsource.Source
}

func (s *clumsySource) Watch(ctx context.Context, hand func(podsource.Set)) error {
	s.check("source")
	return s.Source.Watch(ctx, hand)
}

type clumsyAdmitter struct{}

func (clumsyAdmitter) Admit(pod *corev1.Pod, _ []*corev1.Pod) podspec.AdmitResult {
	if pod.Name == "undecided" {
		panic("admitter")
	}
	return podspec.Admitted()
}

type clumsySoftAdmitter struct{ clumsy }

func (a *clumsySoftAdmitter) Admit(context.Context, *corev1.Pod) (podspec.AdmitResult, error) {
	a.check("soft admitter")
	return podspec.Admitted(), nil
}

type clumsyRecorder struct{}

func (clumsyRecorder) Record(*corev1.Event) { panic("recorder") }

// AG-9: a panic in code that the user passed to an agent is logged with its stack, and
// pods keep running.
func TestAgent_SurvivesPanicsOfUserCode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var (
			hooks agent.Hooks
			log   logtest.Buffer
			mu    sync.Mutex
			names = map[string]bool{}
		)
		panicking(t, reflect.ValueOf(&hooks).Elem(), "hooks", func(name string) {
			mu.Lock()
			defer mu.Unlock()
			names[name] = true
		})
		source := &clumsySource{Source: podsource.NewMemory(agenttest.Pod("web"), agenttest.Pod("undecided"), agenttest.Pod("crashes", "run-for=1s", "exit-code=1"))}
		var sink clumsy
		var lastStatus corev1.PodStatus
		a, err := agent.New(
			agent.WithSimulatedRuntime(),
			agent.WithNode(node.Config{DisableCgroups: true}), agent.WithSource("memory", source),
			agent.WithLogger(slog.New(slog.NewTextHandler(&log, nil))), agent.WithRecorder(clumsyRecorder{}),
			agent.WithAdmitter(clumsyAdmitter{}), agent.WithSoftAdmitter(new(clumsySoftAdmitter)),
			agent.WithHooks(hooks), agent.WithHooks(hooks), agent.WithConfig(imagegc.Config{}),
			agent.WithStatusSink(status.SinkFunc(func(_ context.Context, pod *corev1.Pod, st corev1.PodStatus) error {
				sink.check("sink")
				if pod.Name == "web" {
					lastStatus = st
				}
				return nil
			})),
		)
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- a.Run(ctx) }()
		time.Sleep(5 * time.Minute)
		synctest.Wait()
		assert.Equal(t, corev1.PodRunning, lastStatus.Phase)
		require.NoError(t, a.Healthy())
		for _, pod := range a.Pods() {
			if pod.Name == "undecided" {
				assert.Equal(t, "UnexpectedAdmissionError", pod.Status.Reason)
			}
		}
		cancel()
		require.NoError(t, <-done)

		out := log.String()
		for _, part := range []string{"watch source memory", "admit pod", "soft admitter", "record event", "goroutine"} {
			assert.Contains(t, out, part)
		}
		mu.Lock()
		defer mu.Unlock()
		for _, name := range []string{
			"hooks.Sources.SetReceived", "hooks.SyncLoop.IterationEnded", "hooks.PodManager.Admitted", "hooks.PodWorkers.SyncStarted", "hooks.PodWorkers.SyncEnded",
			"hooks.PLEG.Relisted", "hooks.PLEG.Inspected", "hooks.Status.Changed", "hooks.Status.Sent", "hooks.CRI.Call", "hooks.ImageGC.Collected",
		} {
			assert.True(t, names[name], "%s was not called", name)
		}
	})
}
