package scenario

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/internal/agenttest"
)

// No timer is on the critical path: a hundred pods start, change, fail and end while the
// clock of a bubble stands still.
func TestAgent_NeedsNoTimerToSyncPods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := agenttest.New(t, agenttest.Config{})
		h.Start()
		synctest.Wait()
		start := time.Now()
		var jobs []*corev1.Pod
		for i := range 20 {
			jobs = append(jobs, agenttest.PodWithPolicy(fmt.Sprint("job-", i), corev1.RestartPolicyNever, "start-error=on purpose"))
		}
		h.Memory.Put(append(agenttest.Pods(100), jobs...)...)
		synctest.Wait()
		require.Len(t, h.Running(), 100)
		for _, pod := range agenttest.Pods(100) {
			require.Equal(t, corev1.PodRunning, h.LastStatus(pod.Name).Phase, pod.Name)
		}
		h.Memory.Put(withImage("pod-00050", "app:2"))
		synctest.Wait()
		assert.EqualValues(t, 1, h.LastStatus("pod-00050").ContainerStatuses[0].RestartCount)
		h.Memory.Set()
		synctest.Wait()
		assert.Equal(t, agenttest.Empty, h.Left())
		assert.Zero(t, time.Since(start), "a sync waited for a timer")
		h.Stop()
		h.ShutDown()
	})
}

// SL-8, PL-8: a pod whose start hangs indefinitely neither makes the agent unhealthy nor
// delays another pod.
func TestAgent_HungPodDelaysNoOther(t *testing.T) {
	if testing.Short() {
		t.Skip("takes half a minute with the race detector, and is the same for all users")
	}
	synctest.Test(t, func(t *testing.T) {
		h := agenttest.New(t, agenttest.Config{})
		h.Start()
		synctest.Wait()
		start := time.Now()
		h.Memory.Put(append(agenttest.Pods(100), agenttest.Pod("hung", "start-hang=true"))...)
		synctest.Wait()
		require.Len(t, h.Running(), 100)
		assert.Zero(t, time.Since(start), "another pod waited for the one that hangs")
		for minute := range 15 {
			for range 12 {
				time.Sleep(5 * time.Second)
				require.NoError(t, h.Agent().Healthy(), "after %s", time.Since(start))
			}
			at := time.Now()
			late := fmt.Sprint("late-", minute)
			h.Memory.Put(withImage(fmt.Sprintf("pod-%05d", minute), "app:2"), agenttest.Pod(late))
			h.Memory.Delete("default", fmt.Sprintf("pod-%05d", 99-minute/2))
			synctest.Wait()
			require.Equal(t, corev1.PodRunning, h.LastStatus(late).Phase, "minute %d", minute)
			require.Zero(t, time.Since(at))
		}
		hung := h.LastStatus("hung")
		require.Len(t, hung.ContainerStatuses, 1)
		assert.Nil(t, hung.ContainerStatuses[0].State.Running)
		h.Memory.Set()
		time.Sleep(5 * time.Minute)
		synctest.Wait()
		assert.Equal(t, agenttest.Empty, h.Left())
		h.Stop()
		h.ShutDown()
	})
}

func withImage(name, image string) *corev1.Pod {
	pod := agenttest.Pod(name)
	pod.Spec.Containers[0].Image = image
	return pod
}
