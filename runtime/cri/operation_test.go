package cri

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/runtime"
)

// operations records the operations of a Client, and in which of them each changing call is
// made.
type operations struct {
	mu    sync.Mutex
	ended []runtime.Operation
	lines []string // of ended operations
	calls []string
}

func (o *operations) hooks() Hooks {
	return Hooks{
		OperationStarted: func(ctx context.Context, op runtime.Operation) context.Context {
			return metadata.AppendToOutgoingContext(ctx, "operation", string(op.Type))
		},
		OperationEnded: func(ctx context.Context, op runtime.Operation, duration time.Duration, err error) {
			o.mu.Lock()
			defer o.mu.Unlock()
			o.ended = append(o.ended, op)
			outgoing, _ := metadata.FromOutgoingContext(ctx)
			o.lines = append(o.lines, fmt.Sprint(op.Type, " ", op.Container, " in ", outgoing["operation"], " ", duration, " failed=", err != nil))
		},
	}
}

// record is a fake's before.
func (o *operations) record(ctx context.Context, rpc string, _ any) error {
	incoming, _ := metadata.FromIncomingContext(ctx)
	if op := incoming["operation"]; changes(rpc) {
		o.mu.Lock()
		defer o.mu.Unlock()
		o.calls = append(o.calls, fmt.Sprint(rpc, " in ", op))
	}
	return nil
}

func (o *operations) find(t *testing.T, opType runtime.OperationType) runtime.Operation {
	t.Helper()
	i := slices.IndexFunc(o.ended, func(op runtime.Operation) bool { return op.Type == opType })
	require.GreaterOrEqual(t, i, 0, opType)
	return o.ended[i]
}

// The calls of an operation get the context that OperationStarted returned.
func TestClient_ObservesOperations(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, o := newFake(), &operations{}
		c := f.client(t, Config{Hooks: o.hooks()})
		f.setBefore(o.record)
		pod := onePod("main")
		pod.Spec.Containers[0].Lifecycle = sleepHook(2)
		pod.Spec.Containers[0].Lifecycle.PostStart = &corev1.LifecycleHandler{Sleep: &corev1.SleepAction{Seconds: 3}}
		require.Empty(t, c.Apply(t.Context(), pod, startAll(pod), runtime.RunOptions{}).Failures)
		observed, err := c.Pod(t.Context(), pod.UID)
		require.NoError(t, err)
		require.NoError(t, c.Kill(t.Context(), pod, observed, runtime.Termination{GracePeriod: 30 * time.Second, Reason: "Evicted"}))
		assert.ElementsMatch(t, []string{ // the image is pulled while the sandbox is created
			"pull image  in [pull image] 0s failed=false", "create sandbox  in [create sandbox] 0s failed=false",
			"create container main in [create container] 0s failed=false", "start container main in [start container] 0s failed=false",
			"run postStart hook main in [run postStart hook] 3s failed=false",
			"run preStop hook main in [kill container run preStop hook] 2s failed=false",
			"kill container main in [kill container] 2s failed=false", "stop sandbox  in [stop sandbox] 0s failed=false",
		}, o.lines)
		assert.ElementsMatch(t, []string{
			"PullImage in [pull image]", "RunPodSandbox in [create sandbox]", "CreateContainer in [create container]",
			"StartContainer in [start container]", "StopContainer in [kill container]", "StopPodSandbox in [stop sandbox]",
		}, o.calls)

		sandbox, id := observed.Sandboxes[0].ID, observed.Containers[0].ID
		assert.Equal(t, runtime.Operation{Type: runtime.OperationPullImage, Pod: pod, Image: busybox, ImageBytes: imageBytes}, o.find(t, runtime.OperationPullImage))
		assert.Equal(t, runtime.Operation{Type: runtime.OperationCreateSandbox, Pod: pod, SandboxID: sandbox}, o.find(t, runtime.OperationCreateSandbox))
		for _, opType := range []runtime.OperationType{
			runtime.OperationCreateContainer, runtime.OperationStartContainer, runtime.OperationPostStartHook,
		} {
			assert.Equal(t, runtime.Operation{
				Type: opType, Pod: pod, SandboxID: sandbox, ContainerID: id, Container: "main", Image: busybox,
			}, o.find(t, opType))
		}
		for _, opType := range []runtime.OperationType{runtime.OperationPreStopHook, runtime.OperationKillContainer} {
			assert.Equal(t, runtime.Operation{
				Type: opType, Pod: pod, ContainerID: id, Container: "main", Image: busybox, GracePeriod: 30 * time.Second, Reason: "Evicted",
			}, o.find(t, opType))
		}
		assert.Equal(t, runtime.Operation{Type: runtime.OperationStopSandbox, Pod: pod, SandboxID: sandbox, Reason: "Evicted"}, o.find(t, runtime.OperationStopSandbox))
	})
}

// An operation that fails ends with its error, and a back-off or a present image is no
// operation.
func TestClient_ObservesFailedOperations(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, o := newFake(), &operations{}
		c := f.client(t, Config{Hooks: o.hooks()})
		failing := "PullImage"
		f.setBefore(func(_ context.Context, rpc string, _ any) error {
			if rpc == failing {
				return status.Error(codes.Unknown, "no luck")
			}
			return nil
		})
		pod := onePod("main")
		apply := func() []string {
			o.lines = nil
			c.Apply(t.Context(), pod, startAll(pod), runtime.RunOptions{})
			return slices.DeleteFunc(o.lines, func(l string) bool { return l == "create sandbox  in [create sandbox] 0s failed=false" })
		}
		assert.Equal(t, []string{"pull image  in [pull image] 0s failed=true"}, apply())
		assert.Empty(t, apply(), "the back-off")
		failing = "CreateContainer"
		f.addImage(busybox)
		assert.Equal(t, []string{"create container main in [create container] 0s failed=true"}, apply())
		assert.Empty(t, o.ended[len(o.ended)-1].ContainerID)
		failing = "StartContainer"
		assert.Equal(t, []string{"create container main in [create container] 0s failed=false", "start container main in [start container] 0s failed=true"}, apply())
		failing = "RunPodSandbox"
		assert.Equal(t, []string{"create sandbox  in [create sandbox] 0s failed=true"}, apply())
	})
}

// Without hooks an operation costs nothing.
func TestClient_ObserveDoesNotAllocate(t *testing.T) {
	c := newFake().client(t, Config{})
	pod := onePod("main")
	assert.Zero(t, testing.AllocsPerRun(100, func() {
		op := runtime.Operation{Type: runtime.OperationStartContainer, Pod: pod}
		_ = c.observe(t.Context(), &op, func(context.Context) error { op.ContainerID = "c"; return nil })
	}))
}

// Pods that wait for one pull are operations of their own; the pull is made in the context
// of the first.
func TestClient_ObservesSharedPull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, o := newFake(), &operations{}
		c := f.client(t, Config{Hooks: o.hooks()})
		f.setBefore(func(ctx context.Context, rpc string, req any) error {
			if rpc == "PullImage" {
				time.Sleep(time.Second)
			}
			return o.record(ctx, rpc, req)
		})
		var wg sync.WaitGroup
		for i := range 3 {
			pod := onePod("main")
			pod.Name, pod.UID = fmt.Sprint("pod-", i), types.UID(fmt.Sprint(i))
			wg.Go(func() { c.Apply(t.Context(), pod, startAll(pod), runtime.RunOptions{}) })
		}
		wg.Wait()
		count := func(lines []string, line string) (n int) {
			for _, l := range lines {
				if l == line {
					n++
				}
			}
			return n
		}
		assert.Equal(t, 3, count(o.lines, "pull image  in [pull image] 1s failed=false"), o.lines)
		assert.Equal(t, 1, count(o.calls, "PullImage in [pull image]"), o.calls)
	})
}
