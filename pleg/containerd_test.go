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

// take returns how often each RPC was called since it was called last.
func (c *calls) take() (by map[string]int, total int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	by, c.by = c.by, map[string]int{}
	for _, n := range by {
		total += n
	}
	return by, total
}

// shop is a pod of one container that runs for an hour.
func shop(image string) *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "shop", Namespace: "default", UID: types.UID("pleg-" + time.Now().Format("150405.000000"))},
		Spec: corev1.PodSpec{
			HostNetwork:                   true,
			TerminationGracePeriodSeconds: new(int64(1)),
			Containers: []corev1.Container{{
				Name: "till", Image: image, ImagePullPolicy: corev1.PullIfNotPresent,
				Command: []string{"sh", "-c", "trap 'exit 3' TERM; sleep 3600 & wait"},
			}},
		},
	}
	podspec.Default(pod)
	return pod
}

// On real runtimes: a pod's start takes at most eight calls, one inspection
// among them; its end is seen at once where there is an event stream, and by the
// next listing where there is none; an idle node costs what PL-4 says.
func TestContainerd(t *testing.T) {
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

		var busy, streaming atomic.Bool
		var cache podcache.Cache
		g, err := pleg.New(pleg.Config{
			Runtime: client, Cache: &cache,
			IsWorking: func(types.UID) bool { return busy.Load() },
			Hooks:     pleg.Hooks{StreamChanged: func(open bool, _ error) { streaming.Store(open) }},
		})
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { assert.NoError(t, g.Run(ctx)) })
		defer wg.Wait()
		defer cancel()
		time.Sleep(2500 * time.Millisecond) // streams have settled

		pod := shop(n.Busybox)
		logs := filepath.Join(t.TempDir(), "logs")
		require.NoError(t, os.MkdirAll(filepath.Join(logs, "till"), 0o755))
		m := runtime.RunOptions{Dir: t.TempDir(), LogDir: logs, CgroupParent: n.CgroupParent, NodeName: "node"}

		busy.Store(true)
		count.take()
		seen, err := g.GetNewerThan(ctx, pod.UID, time.Time{})
		require.NoError(t, err)
		plan := runtime.Plan(pod, runtime.PlanInput{Pod: seen}, time.Now())
		require.Empty(t, client.Apply(ctx, pod, plan, m).Failures)
		ended := time.Now()
		g.RequestInspection(pod.UID)
		busy.Store(false)
		g.MarkIdle(pod.UID)
		seen, err = g.GetNewerThan(ctx, pod.UID, ended)
		require.NoError(t, err)
		defer func() {
			ctx := context.WithoutCancel(ctx)
			assert.NoError(t, client.Kill(ctx, pod, seen, runtime.Termination{GracePeriod: time.Second}))
			if seen, err := client.Pod(ctx, pod.UID); assert.NoError(t, err) {
				assert.NoError(t, client.Remove(ctx, seen))
			}
		}()
		time.Sleep(200 * time.Millisecond) // late hints
		by, total := count.take()
		lists := 0
		if !streaming.Load() { // a listing a second is what PL-4 says
			lists = by["ListPodSandbox"] - 1 + by["ListContainers"] - 1
			assert.LessOrEqual(t, lists, 2*int(1+time.Since(ended)/time.Second+1))
		}
		t.Logf("stream %v: %v", streaming.Load(), by)
		assert.LessOrEqual(t, total-lists, 8, "%v", by)
		require.True(t, seen.CouldHaveRunningContainers())
		g.Drain()

		count.take()
		began := time.Now()
		time.Sleep(3 * time.Second)
		_, total = count.take()
		if streaming.Load() {
			assert.Zero(t, total, "idle, with an event stream")
		} else {
			assert.LessOrEqual(t, total, 2*int(1+time.Since(began)/time.Second), "idle, without")
		}

		// PL-4, PL-8: a daemon that is killed and started again. Nothing changed, so
		// nothing is told; and what changes from then on is told as before.
		stream := streaming.Load()
		n.StopDaemon(t, syscall.SIGKILL)
		require.Eventually(t, func() bool { return !streaming.Load() }, 5*time.Second, 10*time.Millisecond)
		n.StartDaemon(t)
		require.Eventually(t, func() bool { return streaming.Load() == stream }, 20*time.Second, 10*time.Millisecond)
		_, err = g.GetNewerThan(ctx, pod.UID, time.Now())
		require.NoError(t, err)
		for _, e := range g.Drain() { // it could not be inspected for a while
			assert.Equal(t, pleg.PodSync, e.Type, "%v", e)
		}
		require.NoError(t, g.Healthy())

		went := time.Now()
		_, _, err = client.Exec(ctx, seen.Containers[0].ID, []string{"kill", "-TERM", "1"}, time.Second, 100)
		require.NoError(t, err)
		select {
		case <-g.Notify():
		case <-time.After(5 * time.Second):
			t.Fatal("the end of the container was not told")
		}
		t.Logf("stream %v: told %v after the signal", streaming.Load(), time.Since(went))
		events := g.Drain()
		require.NotEmpty(t, events)
		assert.Equal(t, pleg.ContainerDied, events[0].Type)
		assert.True(t, events[0].HasExitCode)
		assert.EqualValues(t, 3, events[0].ExitCode)
	})
}
