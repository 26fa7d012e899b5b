package cri

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/runtime"
)

// faults makes calls fail at random, before or after they took effect, until it
// is stopped.
type errs struct {
	mu  sync.Mutex
	r   *rand.Rand
	off bool
}

func (x *errs) strike() error {
	x.mu.Lock()
	defer x.mu.Unlock()
	all := []codes.Code{codes.Unavailable, codes.DeadlineExceeded, codes.Unknown, codes.Internal, codes.Canceled}
	if x.off || x.r.IntN(5) > 0 {
		return nil
	}
	return status.Error(all[x.r.IntN(len(all))], "struck")
}

// RT-17: whatever calls fail, before or after they took effect, turns that are
// planned from what is seen bring a pod to where it should be as soon as calls
// work again: one sandbox, one container of each name, and in the end nothing.
func TestAnyFaultsAreOvercome(t *testing.T) {
	for seed := range uint64(100) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { overcome(t, rand.New(rand.NewPCG(seed, 5))) })
		})
	}
}

func overcome(t *testing.T, r *rand.Rand) {
	f, x := newFake(), &errs{r: r}
	f.before = func(context.Context, string, any) error { return x.strike() }
	f.after = func(string, any) error { return x.strike() }
	c := f.client(t, Config{})
	pod := onePod("a", "b")
	always := corev1.ContainerRestartPolicyAlways
	pod.Spec.InitContainers = []corev1.Container{{Name: "side", Image: busybox, RestartPolicy: &always}}
	run := func() {
		if observed, err := c.Pod(t.Context(), pod.UID); err == nil {
			v := runtime.PlanInput{Pod: observed, Probes: runtime.PodProbeResults{}}
			for _, ct := range observed.Containers {
				v.Probes[ct.ID] = runtime.ProbeResults{Startup: runtime.ProbeSuccess, Readiness: runtime.ProbeSuccess, Liveness: runtime.ProbeSuccess}
			}
			c.Apply(t.Context(), pod, runtime.Plan(pod, v, time.Now()), runtime.RunOptions{})
		}
		time.Sleep(6 * time.Minute) // longer than any back-off
	}
	end := func() error {
		observed, err := c.Pod(t.Context(), pod.UID)
		if err != nil {
			return err
		}
		if err := c.Kill(t.Context(), pod, observed, runtime.Termination{GracePeriod: time.Second}); err != nil {
			return err
		}
		if observed, err = c.Pod(t.Context(), pod.UID); err != nil {
			return err
		}
		return c.Remove(t.Context(), observed)
	}
	for range 6 {
		run()
	}
	x.mu.Lock()
	x.off = true
	x.mu.Unlock()
	for range 6 {
		run()
	}
	observed, err := c.Pod(t.Context(), pod.UID)
	require.NoError(t, err)
	running := map[string]int{}
	for _, ct := range observed.Containers {
		if ct.State == runtime.Running {
			running[ct.Name]++
			assert.Equal(t, observed.Sandboxes[0].ID, ct.SandboxID)
		}
	}
	assert.Equal(t, map[string]int{"a": 1, "b": 1, "side": 1}, running)
	ready := 0
	for _, s := range observed.Sandboxes {
		if s.State == runtime.SandboxReady {
			ready++
		}
	}
	assert.Equal(t, 1, ready)
	assert.Zero(t, c.starts.inUse)

	x.mu.Lock()
	x.off = false
	x.mu.Unlock()
	for range 3 {
		_ = end()
	}
	x.mu.Lock()
	x.off = true
	x.mu.Unlock()
	require.NoError(t, end())
	f.mu.Lock()
	defer f.mu.Unlock()
	assert.Empty(t, f.sandboxes)
	assert.Empty(t, f.containers)
	assert.Empty(t, c.hooked.ids)
}
