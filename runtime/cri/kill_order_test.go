package cri

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/internal/sleep"
	"github.com/sublet-dev/agent/runtime"
)

// sidecars adds sidecars to a pod, each with a preStop hook that sleeps.
func sidecars(pod *corev1.Pod, hook int64, names ...string) {
	always := corev1.ContainerRestartPolicyAlways
	for _, name := range names {
		pod.Spec.InitContainers = append(pod.Spec.InitContainers, corev1.Container{Name: name, Image: busybox, RestartPolicy: &always, Lifecycle: sleepHook(hook)})
	}
}

// timeToStop has each container but one take all the time to exit that it is given. It returns when each was stopped.
func timeToStop(f *fake, observed *runtime.Pod, quick string) func() map[string]time.Duration {
	began, at := time.Now(), map[string]time.Duration{}
	var mu sync.Mutex
	f.setBefore(func(_ context.Context, rpc string, req any) error {
		if r, ok := req.(*v1.StopContainerRequest); ok && rpc == "StopContainer" {
			name := byID(observed.Containers, r.ContainerId).Name
			mu.Lock()
			at[name] = time.Since(began)
			mu.Unlock()
			if name != quick {
				time.Sleep(time.Duration(r.Timeout) * time.Second)
			}
		}
		return nil
	})
	return func() map[string]time.Duration {
		mu.Lock()
		defer mu.Unlock()
		return at
	}
}

// RT-6, RT-9: the hooks of sidecars begin with those of the other containers. Only their stop signals wait
// until the others have exited.
func TestKill_HooksOfSidecarsBeginAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		var began []time.Time
		var mu sync.Mutex
		c := f.client(t, Config{Hooks: Hooks{OperationStarted: func(ctx context.Context, op runtime.Operation) context.Context {
			if op.Type == runtime.OperationPreStopHook {
				mu.Lock()
				defer mu.Unlock()
				began = append(began, time.Now())
			}
			return ctx
		}}})
		pod := onePod("main")
		pod.Spec.Containers[0].Lifecycle = sleepHook(10)
		sidecars(pod, 5, "first", "second")
		observed := running(t, f, c, pod)
		start := time.Now()
		stopped := timeToStop(f, &observed, "main")
		require.NoError(t, c.Kill(t.Context(), pod, observed, runtime.Termination{GracePeriod: 30 * time.Second}))
		assert.Equal(t, []time.Time{start, start, start}, began)
		assert.Equal(t, map[string]time.Duration{"main": 10 * time.Second, "second": 10 * time.Second, "first": 30 * time.Second}, stopped(), "in order, until the grace period is over")
		assert.Equal(t, int64(20), f.stops[observed.LatestContainer("second").ID])
		assert.Equal(t, int64(2), f.stops[observed.LatestContainer("first").ID])
	})
}

// RT-6: once the grace period is over, all that still runs is stopped at once, however many sidecars there are.
func TestKill_NoOrderAfterTheGracePeriod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		c := f.client(t, Config{})
		pod := onePod("main")
		sidecars(pod, 1000, "first", "second", "third")
		observed := running(t, f, c, pod)
		began := time.Now()
		stopped := timeToStop(f, &observed, "")
		require.NoError(t, c.Kill(t.Context(), pod, observed, runtime.Termination{GracePeriod: 30 * time.Second}))
		over := 30 * time.Second
		assert.Equal(t, map[string]time.Duration{"main": 0, "first": over, "second": over, "third": over}, stopped())
		assert.Equal(t, over+runtime.MinStopPeriod, time.Since(began))
	})
}

// RT-9: a hook that takes longer than the grace period is not interrupted before its container has ended.
func TestKill_LateHookGoesOn(t *testing.T) {
	for name, tc := range map[string]struct {
		takes time.Duration
		ends  bool
	}{"it ends": {31 * time.Second, true}, "it does not end": {time.Hour, false}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFake()
				hook := make(chan error, 1)
				f.execute = func(*v1.ExecSyncRequest) (*v1.ExecSyncResponse, error) { return &v1.ExecSyncResponse{}, nil }
				c := f.client(t, Config{})
				pod := onePod("main")
				pod.Spec.Containers[0].Lifecycle = &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: []string{"drain"}}}}
				observed := running(t, f, c, pod)
				began := time.Now()
				f.setBefore(func(ctx context.Context, _ string, req any) error {
					switch r := req.(type) {
					case *v1.ExecSyncRequest:
						ctx, cancel := context.WithTimeout(ctx, time.Duration(r.Timeout)*time.Second) // as a runtime has it
						defer cancel()
						hook <- sleep.For(ctx, tc.takes)
					case *v1.StopContainerRequest:
						assert.Equal(t, 30*time.Second, time.Since(began))
						assert.Equal(t, int64(2), r.Timeout)
						time.Sleep(runtime.MinStopPeriod)
					}
					return nil
				})
				require.NoError(t, c.Kill(t.Context(), pod, observed, runtime.Termination{GracePeriod: 30 * time.Second}))
				assert.Equal(t, 32*time.Second, time.Since(began))
				assert.Equal(t, tc.ends, <-hook == nil)
			})
		})
	}
}
