package cri

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/runtime"
)

// PW-6: the end of a turn's context ends it at once, wherever it is. Only the start of a
// container is interrupted later.
func TestApplyEndsWithItsContext(t *testing.T) {
	for _, at := range []string{"ImageStatus", "RunPodSandbox", "PodSandboxStatus", "CreateContainer", "StartContainer", "ExecSync"} {
		t.Run(at, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFake()
				f.addImage(busybox)
				f.setBefore(func(ctx context.Context, rpc string, _ any) error {
					if rpc == at {
						<-ctx.Done()
						return ctx.Err()
					}
					return nil
				})
				c := f.client(t, Config{})
				pod := onePod("main")
				pod.Spec.Containers[0].Lifecycle = &corev1.Lifecycle{PostStart: &corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: []string{"x"}}}}
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				began := time.Now()
				applied := c.Apply(ctx, pod, startAll(pod), runtime.RunOptions{})
				want := time.Second
				if at == "StartContainer" {
					want += startCancelDelay
				}
				assert.Equal(t, want, time.Since(began))
				assert.NotEmpty(t, applied.Failures)
				assert.Zero(t, c.starts.inUse)
			})
		})
	}
}

// PW-6: a start that is under way when its pod is deleted comes to its end, because an
// interrupted one can leave a process that the runtime knows nothing of.
func TestApply_DoesNotInterruptAStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.addImage(busybox)
		ctx, cancel := context.WithCancel(t.Context())
		f.setBefore(func(ctx context.Context, rpc string, _ any) error {
			if rpc != "StartContainer" {
				return nil
			}
			cancel()
			select {
			case <-time.After(startCancelDelay / 2):
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})
		c := f.client(t, Config{})
		pod := onePod("main", "second")
		applied := c.Apply(ctx, pod, startAll(pod), runtime.RunOptions{})
		assert.NotContains(t, applied.Failures, "main")
		assert.Contains(t, applied.Failures, "second", "nothing new is begun")
		observed, err := c.Pod(t.Context(), pod.UID)
		require.NoError(t, err)
		require.Len(t, observed.Containers, 1)
		assert.Equal(t, runtime.Running, observed.Containers[0].State)
	})
}

// Starts are bounded; deletes are not.
func TestStartsAreBoundedDeletesAreNot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.addImage(busybox)
		var now, most atomic.Int64
		f.setBefore(func(_ context.Context, rpc string, _ any) error {
			if rpc == "RunPodSandbox" {
				most.Store(max(most.Load(), now.Add(1)))
				time.Sleep(time.Second)
				now.Add(-1)
			}
			return nil
		})
		c := f.client(t, Config{InitialParallelStarts: 3, MaxParallelStarts: 3})
		done := make(chan int, 9)
		for i := range 9 {
			pod := onePod("main")
			pod.UID = types.UID(fmt.Sprint("uid-", i))
			go func() {
				assert.Empty(t, c.Apply(t.Context(), pod, startAll(pod), runtime.RunOptions{}).Failures)
				done <- i
			}()
			synctest.Wait()
		}
		observed := runtime.Pod{UID: "other", Sandboxes: []runtime.Sandbox{{ID: "sb-0", State: runtime.SandboxReady}}}
		began := time.Now()
		require.NoError(t, c.Kill(t.Context(), onePod(), observed, runtime.Termination{GracePeriod: time.Second}))
		assert.Zero(t, time.Since(began))
		for round := range 3 { // the oldest first
			got := []int{<-done, <-done, <-done}
			assert.ElementsMatch(t, []int{3 * round, 3*round + 1, 3*round + 2}, got)
		}
		assert.Equal(t, int64(3), most.Load())
	})
}
