//go:build linux

package pleg_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/internal/containerdtest"
	"github.com/sublet-dev/agent/pleg"
	"github.com/sublet-dev/agent/podcache"
	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/runtime"
	"github.com/sublet-dev/agent/runtime/cri"
)

// calls counts RPCs by name.
type calls struct {
	mu sync.Mutex
	by map[string]int
}

func (c *calls) unary(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	c.mu.Lock()
	c.by[method[strings.LastIndexByte(method, '/')+1:]]++
	c.mu.Unlock()
	return invoke(ctx, method, req, reply, cc, opts...)
}

// take returns the number of calls of each RPC since the previous take.
func (c *calls) take() (by map[string]int, total int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	by, c.by = c.by, map[string]int{}
	for _, n := range by {
		total += n
	}
	return by, total
}

// waitUntilIdle waits until there were no calls for a second.
func (c *calls) waitUntilIdle(t *testing.T) {
	t.Helper()
	var before int
	var since time.Time
	require.Eventually(t, func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		total := 0
		for _, n := range c.by {
			total += n
		}
		if total != before || since.IsZero() {
			before, since = total, time.Now()
		}
		return time.Since(since) > time.Second
	}, time.Minute, 10*time.Millisecond)
}

// newSleepPod returns a pod with one container that runs for an hour.
func newSleepPod(image string) *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "sleep", Namespace: "default", UID: types.UID("pleg-" + time.Now().Format("150405.000000"))},
		Spec: corev1.PodSpec{
			HostNetwork:                   true,
			TerminationGracePeriodSeconds: new(int64(1)),
			Containers: []corev1.Container{{
				Name: "main", Image: image, ImagePullPolicy: corev1.PullIfNotPresent,
				Command: []string{"sh", "-c", "trap 'exit 3' TERM; sleep 3600 & wait"},
			}},
		},
	}
	podspec.Default(pod)
	return pod
}

// On containerd: starting a pod takes at most eight calls, including one
// inspection. Its end is observed at once with an event stream, and by the next
// relist without one. An idle node costs what PL-4 promises.
func TestGenerator_OnContainerd(t *testing.T) {
	if testing.Short() {
		t.Skip("starts containerd")
	}
	containerdtest.Each(t, func(t *testing.T, n *containerdtest.Node) {
		count := &calls{by: map[string]int{}}
		cc, err := cri.Dial(n.Endpoint(), grpc.WithChainUnaryInterceptor(count.unary))
		require.NoError(t, err)
		defer cc.Close()
		client, err := cri.New(cc, cri.Config{})
		require.NoError(t, err)

		var streaming atomic.Bool
		var received atomic.Int64
		var cache podcache.Cache
		g, err := pleg.New(pleg.Config{
			Runtime: client, Cache: &cache,
			MaxDeferral: time.Minute, // a slow machine may need longer than the default for the start
			Hooks: pleg.Hooks{
				StreamChanged:        func(open bool, _ error) { streaming.Store(open) },
				RuntimeEventReceived: func(types.UID) { received.Add(1) },
			},
		})
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { assert.NoError(t, g.Run(ctx)) })
		defer wg.Wait()
		defer cancel()
		if !strings.HasPrefix(n.Name, "containerd-1.6") { // later ones have an event stream
			require.Eventually(t, streaming.Load, time.Minute, 10*time.Millisecond)
			count.waitUntilIdle(t) // the relist that follows is over
		}

		pod := newSleepPod(n.Busybox)
		logs := filepath.Join(t.TempDir(), "logs")
		require.NoError(t, os.MkdirAll(filepath.Join(logs, "main"), 0o755))
		options := runtime.RunOptions{Dir: t.TempDir(), LogDir: logs, CgroupParent: n.CgroupParent, NodeName: "node"}

		g.SyncStarted(pod.UID)
		count.take()
		countedAt := time.Now()
		observed, err := g.GetNewerThan(ctx, pod.UID, time.Time{})
		require.NoError(t, err)
		plan := runtime.Plan(pod, runtime.PlanInput{Pod: observed}, time.Now())
		require.Empty(t, client.Apply(ctx, pod, plan, options).Failures)
		appliedAt := time.Now()
		received.Store(0)
		g.SyncEnded(pod.UID, true)
		observed, err = g.GetNewerThan(ctx, pod.UID, appliedAt)
		require.NoError(t, err)
		defer func() {
			ctx := context.WithoutCancel(ctx)
			assert.NoError(t, client.Kill(ctx, pod, observed, runtime.Termination{GracePeriod: time.Second}))
			if observed, err := client.Pod(ctx, pod.UID); assert.NoError(t, err) {
				assert.NoError(t, client.Remove(ctx, observed))
			}
		}()
		if streaming.Load() {
			count.waitUntilIdle(t)
		}
		by, total := count.take()
		most := 8 + 4*int(received.Load()) // an event that comes after the sync has the pod inspected once more
		lists := 0
		if !streaming.Load() { // PL-4: a relist every second
			lists = by["ListPodSandbox"] - 1 + by["ListContainers"] - 1
			assert.LessOrEqual(t, lists, 2*int(1+time.Since(countedAt)/time.Second+1))
		}
		t.Logf("stream %v: %v, %d late events", streaming.Load(), by, received.Load())
		assert.LessOrEqual(t, total-lists, most, "%v", by)
		require.True(t, observed.CouldHaveRunningContainers())
		g.Drain()

		count.take()
		startTime := time.Now()
		for range 20 { // on a busy machine events of the start may still come
			time.Sleep(3 * time.Second)
			if _, total = count.take(); !streaming.Load() || total == 0 {
				break
			}
		}
		if streaming.Load() {
			assert.Zero(t, total, "idle, with an event stream")
		} else {
			assert.LessOrEqual(t, total, 2*int(1+time.Since(startTime)/time.Second), "idle, without")
		}

		// PL-4, PL-8: the daemon is killed and restarted. No pod changed, so there
		// are no events but PodSync; later changes are reported as before.
		stream := streaming.Load()
		n.StopDaemon(t, syscall.SIGKILL)
		require.Eventually(t, func() bool { return !streaming.Load() }, time.Minute, 10*time.Millisecond)
		n.StartDaemon(t)
		require.Eventually(t, func() bool { return streaming.Load() == stream }, time.Minute, 10*time.Millisecond)
		_, err = g.GetNewerThan(ctx, pod.UID, time.Now())
		require.NoError(t, err)
		for _, e := range g.Drain() { // inspections failed meanwhile
			assert.Equal(t, pleg.PodSync, e.Type, "%v", e)
		}
		require.NoError(t, g.Healthy())

		killedAt := time.Now()
		_, _, err = client.Exec(ctx, observed.Containers[0].ID, []string{"kill", "-TERM", "1"}, time.Minute, 100)
		require.NoError(t, err)
		select {
		case <-g.Notify():
		case <-time.After(time.Minute):
			t.Fatal("no event for the exit of the container")
		}
		t.Logf("stream %v: event %v after the signal", streaming.Load(), time.Since(killedAt))
		events := g.Drain()
		require.NotEmpty(t, events)
		assert.Equal(t, pleg.ContainerDied, events[0].Type)
		assert.True(t, events[0].HasExitCode)
		assert.EqualValues(t, 3, events[0].ExitCode)
	})
}
