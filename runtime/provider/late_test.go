package provider_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/runtime"
)

// slow is a provider whose lists take a second to arrive.
type slow struct{ *notifying }

func (s slow) GetPods(ctx context.Context) (pods []*corev1.Pod, err error) {
	reported, err := s.notifying.GetPods(ctx)
	for _, pod := range reported {
		pods = append(pods, pod.DeepCopy())
	}
	time.Sleep(time.Second)
	return pods, err
}

// The end of a pod counts more than a list that was asked for before it; a later one counts more than the end.
func TestRuntime_Pod_AskedBeforeTheEnd(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := slow{&notifying{memory: newMemory()}}
		rt := newTestRuntime(t, p)
		go func() { _ = rt.Watch(t.Context(), func(types.UID) {}) }()
		synctest.Wait()
		create(t, rt, newTestPod("web"))
		p.set(newTestPod("web"), corev1.PodRunning)
		time.AfterFunc(500*time.Millisecond, func() {
			last := newTestPod("web")
			last.Status.Phase = corev1.PodSucceeded
			p.remove("web") // it forgets pods that have ended
			p.notify(last)
		})
		assert.Equal(t, corev1.PodSucceeded, observe(t, rt, "web").Object.Status.Phase)
		assert.Equal(t, corev1.PodSucceeded, observe(t, rt, "web").Object.Status.Phase)
		p.set(newTestPod("web"), corev1.PodRunning)
		assert.Equal(t, corev1.PodRunning, observe(t, rt, "web").Object.Status.Phase)
	})
}

// A provider that waits for the grace period in DeletePod has the time for it.
func TestRuntime_Kill_DeletePodWaits(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := newMemory()
		rt := newTestRuntime(t, p)
		pod := newTestPod("web")
		create(t, rt, pod)
		const grace = time.Hour
		p.on("DeletePod", func(ctx context.Context, _ *corev1.Pod) error {
			select {
			case <-time.After(grace):
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})
		require.NoError(t, rt.Kill(t.Context(), pod, observe(t, rt, "web"), runtime.Termination{GracePeriod: grace}))
		assert.Equal(t, []string{"CreatePod web", "DeletePod web"}, p.called())
	})
}
