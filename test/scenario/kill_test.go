package scenario

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/internal/agenttest"
	"github.com/sublet-dev/agent/runtime"
)

// AG-4, SL-7: an agent leaves its pods running when it stops or is killed. However often
// that happens, no container is started twice, restarted or left behind, and each exit code
// is reported.
func TestAgent_KilledAtAnyMoment(t *testing.T) {
	if testing.Short() {
		t.Skip("takes half a minute with the race detector, and is the same for all users")
	}
	for seed := range uint64(12) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { killAtRandom(t, rand.New(rand.NewPCG(seed, 4))) })
		})
	}
}

func killAtRandom(t *testing.T, rnd *rand.Rand) {
	t.Helper()
	sleep := func(most time.Duration) {
		time.Sleep(time.Duration(rnd.Int64N(int64(most/time.Millisecond))) * time.Millisecond)
	}
	h := agenttest.New(t, agenttest.Config{})
	slow := []string{"sandbox-delay=300ms", "start-delay=200ms", "stop-after=700ms"}
	var pods []*corev1.Pod
	for i := range 6 {
		pods = append(pods, agenttest.Pod(fmt.Sprint("server-", i), slow...))
	}
	job := agenttest.PodWithPolicy("job", corev1.RestartPolicyNever, append(slow, "run-for=1500ms", "exit-code=7")...)
	h.Start()
	h.Memory.Put(append(pods, job)...)
	first := map[string]string{}
	for range 12 {
		sleep(600 * time.Millisecond)
		if rnd.IntN(4) == 0 {
			h.Stop()
		} else {
			h.Kill()
		}
		assertSameContainers(t, h, first)
		sleep(300 * time.Millisecond)
		h.Start()
	}
	for range 60 { // the job may start now, and runs for longer than a second
		time.Sleep(time.Second)
		assertSameContainers(t, h, first)
	}
	require.Len(t, first, 6+1, "%s", h.Trace)
	for _, pod := range pods {
		st := h.LastStatus(pod.Name)
		require.Equal(t, corev1.PodRunning, st.Phase, "%s", h.Trace)
		assert.Zero(t, st.ContainerStatuses[0].RestartCount)
	}
	st := h.LastStatus("job")
	require.Equal(t, corev1.PodFailed, st.Phase)
	require.NotNil(t, st.ContainerStatuses[0].State.Terminated)
	assert.EqualValues(t, 7, st.ContainerStatuses[0].State.Terminated.ExitCode)

	h.Memory.Set()
	for range 4 {
		sleep(500 * time.Millisecond)
		h.Kill()
		h.Start()
	}
	time.Sleep(time.Minute)
	assert.Equal(t, agenttest.Empty, h.Left())
	h.Stop()
	h.ShutDown()
}

// assertSameContainers asserts that the running container of each pod is its first one,
// which first has by pod.
func assertSameContainers(t *testing.T, h *agenttest.Harness, first map[string]string) {
	t.Helper()
	for _, c := range h.Running() {
		pod := c.GetLabels()[runtime.LabelPodName]
		if first[pod] == "" {
			first[pod] = c.GetId()
		}
		assert.Equal(t, first[pod], c.GetId(), "%s has another container\n%s", pod, h.Trace)
	}
}
