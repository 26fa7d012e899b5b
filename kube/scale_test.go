package kube_test

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/internal/kubetest"
)

// Sizes of TestKube_RealAPIServerScale: pods of the node, and crashes to measure.
const (
	envScalePods    = "SUBLET_KUBE_PODS"    // default: 20
	envScaleCrashes = "SUBLET_KUBE_CRASHES" // default: 10
)

// scale is a node with many pods, and what the API server says about them.
type scale struct {
	t       *testing.T
	admin   kubernetes.Interface
	machine *testMachine
	agent   *agentProcess

	mu      sync.Mutex // guards the fields below
	running map[string]bool
	exits   map[string]time.Time // by container: when the API server first had its exit
	starts  map[string]time.Time // … and its start
}

// observe watches the pods until ctx is done. A watch may end while the API server starts.
func (s *scale) observe(ctx context.Context) {
	for ctx.Err() == nil {
		w, err := s.admin.CoreV1().Pods("default").Watch(ctx, metav1.ListOptions{})
		if err != nil {
			continue
		}
		for event := range w.ResultChan() {
			if pod, ok := event.Object.(*corev1.Pod); ok && len(pod.Status.ContainerStatuses) == 1 {
				s.note(pod, time.Now())
			}
		}
		w.Stop()
	}
}

func (s *scale) note(pod *corev1.Pod, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	first := func(m map[string]time.Time, containerID string) {
		if _, id, _ := strings.Cut(containerID, "://"); m[id].IsZero() {
			m[id] = now
		}
	}
	st := pod.Status.ContainerStatuses[0]
	s.running[pod.Name] = st.State.Running != nil
	if st.State.Running != nil {
		first(s.starts, st.ContainerID)
	}
	for _, terminated := range []*corev1.ContainerStateTerminated{st.State.Terminated, st.LastTerminationState.Terminated} {
		if terminated != nil {
			first(s.exits, terminated.ContainerID)
		}
	}
}

// await waits until the API server says of so many pods that they run.
func (s *scale) await(pods int) time.Duration {
	s.t.Helper()
	start := time.Now()
	require.Eventually(s.t, func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		n := 0
		for _, running := range s.running {
			if running {
				n++
			}
		}
		return n == pods
	}, 10*time.Minute, 20*time.Millisecond)
	return time.Since(start)
}

// crash ends containers one after the other, each of another pod, and returns the times
// from each exit and from the start that follows until the API server had them.
func (s *scale) crash(n int, pause time.Duration) (exits, starts []time.Duration) {
	s.t.Helper()
	containers := s.machine.containers()
	names := slices.Sorted(maps.Keys(containers))[:n]
	for _, name := range names {
		s.machine.crash(containers[name].GetId())
		time.Sleep(pause) // the rate of the measurement
	}
	times := func(id string, of map[string]time.Time, at func(*v1.ContainerStatus) int64) time.Duration {
		st, err := s.machine.client.ContainerStatus(context.Background(), &v1.ContainerStatusRequest{ContainerId: id})
		require.NoError(s.t, err)
		var observed time.Time
		require.Eventually(s.t, func() bool {
			s.mu.Lock()
			defer s.mu.Unlock()
			observed = of[id]
			return !observed.IsZero()
		}, time.Minute, 10*time.Millisecond)
		return observed.Sub(time.Unix(0, at(st.GetStatus())))
	}
	for _, name := range names {
		exits = append(exits, times(containers[name].GetId(), s.exits, (*v1.ContainerStatus).GetFinishedAt))
		require.EventuallyWithT(s.t, func(c *assert.CollectT) {
			latest := s.machine.containers()[name]
			assert.NotEqual(c, containers[name].GetId(), latest.GetId())
			assert.Equal(c, v1.ContainerState_CONTAINER_RUNNING, latest.GetState())
		}, time.Minute, 10*time.Millisecond)
		starts = append(starts, times(s.machine.containers()[name].GetId(), s.starts, (*v1.ContainerStatus).GetStartedAt))
	}
	slices.Sort(exits)
	slices.Sort(starts)
	return exits, starts
}

// The calls of the API server, the time until it has a change, and the memory of the
// agent, with as many pods as the environment says.
func TestKube_RealAPIServerScale(t *testing.T) {
	size := func(env string, otherwise int) int {
		if n, err := strconv.Atoi(os.Getenv(env)); err == nil {
			return n
		}
		return otherwise
	}
	pods, crashes := size(envScalePods, 20), size(envScaleCrashes, 10)
	server := kubetest.Start(t)
	s := &scale{
		t: t, admin: server.Admin(), machine: newTestMachine(t),
		running: map[string]bool{}, exits: map[string]time.Time{}, starts: map[string]time.Time{},
	}
	s.agent = newAgentProcess(t, server, s.machine.socket)
	s.agent.MaxPods = pods + 10
	go s.observe(t.Context())
	s.agent.start()
	require.Eventually(t, func() bool {
		node, err := s.admin.CoreV1().Nodes().Get(t.Context(), nodeName, metav1.GetOptions{})
		return err == nil && slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
			return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
		})
	}, time.Minute, 20*time.Millisecond)
	report := func(what string) agentUsage {
		u := s.agent.usage()
		total := 0
		for _, n := range u.Calls {
			total += n
		}
		t.Logf("%s: %d calls %v, %d MiB resident", what, total, u.Calls, u.RSS/1024)
		return u
	}
	report("ready")

	for i := range pods {
		pod := newTestPod(fmt.Sprintf("pod-%04d", i))
		pod.UID, pod.Status = "", corev1.PodStatus{}
		_, err := s.admin.CoreV1().Pods("default").Create(t.Context(), pod, metav1.CreateOptions{})
		require.NoError(t, err)
	}
	t.Logf("%d pods were running %v after the last was created", pods, s.await(pods))
	time.Sleep(5 * time.Second) // what follows the starts, such as events, is done
	u := report("started")
	assert.LessOrEqual(t, u.Calls["PATCH pods/…/status"], 3*pods, "patches of statuses: waiting, running, and perhaps the sandbox")

	const idle = 20 * time.Second
	time.Sleep(idle) // the length of the measurement
	u = report(fmt.Sprintf("idle for %v", idle))
	assert.Zero(t, u.Calls["PATCH pods/…/status"], "an unchanged status is not sent")
	assert.Zero(t, u.Calls["GET pods/…"])

	exits, starts := s.crash(min(crashes, pods), 200*time.Millisecond)
	for name, d := range map[string][]time.Duration{"exit": exits, "start": starts} {
		t.Logf("%s to the API server: p50 %v, p99 %v, max %v of %d", name, d[len(d)/2], d[len(d)*99/100], d[len(d)-1], len(d))
	}
	report("crashed")
}
