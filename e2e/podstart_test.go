//go:build linux

package e2e

import (
	"fmt"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/internal/containerdtest"
	"github.com/sublet-dev/agent/runtime/embedded"
	"github.com/sublet-dev/agent/runtime/embedded/hostprocess"
	"github.com/sublet-dev/agent/runtime/embedded/simulated"
)

// eachRuntime runs a benchmark on every runtime there is.
func eachRuntime(b *testing.B, f func(b *testing.B, r *benchEnv)) {
	for _, c := range []struct {
		name     string
		executor embedded.Executor
	}{
		{"embedded/simulated", simulated.New(simulated.Config{})},
		{"embedded/host", hostprocess.New(hostprocess.Config{})},
	} {
		b.Run(c.name, func(b *testing.B) {
			rt, err := embedded.New(embedded.Config{Executor: c.executor})
			require.NoError(b, err)
			b.Cleanup(func() { require.NoError(b, rt.Close()) })
			cc, err := rt.Dial()
			require.NoError(b, err)
			b.Cleanup(func() { require.NoError(b, cc.Close()) })
			f(b, newRig(cc, b.TempDir(), "registry.example/idle:1", ""))
		})
	}
	containerdtest.EachBench(b, func(b *testing.B, n *containerdtest.Node) {
		f(b, newRig(n.Dial(b), filepath.Join(n.Shared, "bench"), n.Busybox, n.CgroupParent))
	})
}

// settled starts an agent and lets it run a pod, so that what follows measures
// no agent's own start.
func (r *benchEnv) settled(b *testing.B) *agentProcess {
	l := r.start(b)
	l.up(b, r.pod("warm"))
	l.down(b, 1)
	return l
}

// empty requires that nothing is left in the runtime.
func (r *benchEnv) empty(b *testing.B) {
	rt := cri.NewRuntimeServiceClient(r.cc)
	boxes, err := rt.ListPodSandbox(b.Context(), &cri.ListPodSandboxRequest{})
	require.NoError(b, err)
	require.Empty(b, boxes.GetItems())
	containers, err := rt.ListContainers(b.Context(), &cri.ListContainersRequest{})
	require.NoError(b, err)
	require.Empty(b, containers.GetContainers())
}

func median(all []time.Duration) time.Duration {
	all = slices.Sorted(slices.Values(all))
	return (all[(len(all)-1)/2] + all[len(all)/2]) / 2
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// BenchmarkPodStart starts one pod after another, alternately with the whole agent,
// from the source to the reported status, and with the three raw calls.
func BenchmarkPodStart(b *testing.B) {
	eachRuntime(b, func(b *testing.B, r *benchEnv) {
		r.tap.eventful = true
		r.settled(b).stop()
		var raw, ours []time.Duration
		for b.Loop() {
			pods := r.raw(b, 1)
			raw = append(raw, each(b, pods, 1, (*rawPod).up))
			each(b, pods, 1, (*rawPod).down)
			l := r.settled(b)
			ours = append(ours, l.up(b, r.pod("pod"))...)
			l.down(b, 1)
			l.stop()
			r.empty(b)
		}
		b.ReportMetric(0, "ns/op") // both, and all that is around them
		b.ReportMetric(ms(median(raw)), "raw-ms")
		b.ReportMetric(ms(median(ours)), "agent-ms")
		b.ReportMetric(float64(median(ours))/float64(median(raw)), "agent/raw")
	})
}

// BenchmarkThirtyPods drops 30 pods on an agent at once and takes them away at
// once, and does the same with raw calls at several numbers at a time, of which
// the best counts.
func BenchmarkThirtyPods(b *testing.B) {
	const n = 30
	atOnce := []int{1, 2, 4, 8, 15, 30}
	eachRuntime(b, func(b *testing.B, r *benchEnv) {
		r.tap.eventful = true
		r.settled(b).stop()
		ups, downs := map[int][]time.Duration{}, map[int][]time.Duration{}
		var first, middle, last, deleted []time.Duration
		for b.Loop() {
			l := r.settled(b)
			pods := make([]*corev1.Pod, n)
			for i := range pods {
				pods[i] = r.pod(fmt.Sprint("p", i))
			}
			took := l.up(b, pods...)
			b.Logf("the agent's pods ran after %v", took)
			first, middle, last = append(first, took[0]), append(middle, median(took)), append(last, took[n-1])
			deleted = append(deleted, l.down(b, n)[n-1])
			r.empty(b)
			l.stop()
			for _, c := range atOnce {
				raw := r.raw(b, n)
				ups[c] = append(ups[c], each(b, raw, c, (*rawPod).up))
				downs[c] = append(downs[c], each(b, raw, c, (*rawPod).down))
			}
		}
		b.Logf("raw calls, by how many at once: up %v, down %v", ups, downs)
		up, upAt := best(atOnce, ups)
		down, downAt := best(atOnce, downs)
		b.ReportMetric(0, "ns/op")
		b.ReportMetric(ms(median(first)), "first-ms")
		b.ReportMetric(ms(median(middle)), "median-ms")
		b.ReportMetric(ms(median(last)), "last-ms")
		b.ReportMetric(float64(median(middle))/float64(median(last)), "median/last")
		b.ReportMetric(ms(up), "raw-up-ms")
		b.ReportMetric(float64(upAt), "raw-up-at-once")
		b.ReportMetric(float64(up)/float64(median(last)), "throughput/raw")
		b.ReportMetric(ms(median(deleted)), "gone-ms")
		b.ReportMetric(ms(down), "raw-down-ms")
		b.ReportMetric(float64(downAt), "raw-down-at-once")
		b.ReportMetric(float64(down)/float64(median(deleted)), "deletion/raw")
	})
}

// best is the least of the medians, and which number at a time it is of.
func best(order []int, took map[int][]time.Duration) (d time.Duration, at int) {
	for _, c := range order {
		if m := median(took[c]); at == 0 || m < d {
			d, at = m, c
		}
	}
	return d, at
}
