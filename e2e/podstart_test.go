//go:build linux

package e2e

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
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
	eachContainerd(b, f)
}

// eachContainerd runs a benchmark on every containerd of this machine.
func eachContainerd(b *testing.B, f func(b *testing.B, r *benchEnv)) {
	containerdtest.EachBench(b, func(b *testing.B, n *containerdtest.Node) {
		r := newRig(n.Dial(b), filepath.Join(n.Shared, "bench"), n.Busybox, n.CgroupParent)
		r.node = n
		f(b, r)
	})
}

// settled starts an agent and lets it run a pod, so that what follows measures
// no agent's own start.
func (r *benchEnv) settled(b *testing.B) *agentProcess {
	left, err := filepath.Glob(filepath.Join(r.root, "agent", "pods", "raw-*"))
	require.NoError(b, err)
	for _, dir := range left { // or the agent would remove them during the measurement
		require.NoError(b, os.RemoveAll(dir))
	}
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

func median[T time.Duration | float64](all []T) T {
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
