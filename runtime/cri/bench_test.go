package cri

import (
	"fmt"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/runtime"
)

// The agent's own share of starting and inspecting a pod, gRPC included.
func BenchmarkStartAndInspect(b *testing.B) {
	f := newFake()
	f.addImage(busybox)
	c := f.client(b, Config{InitialParallelStarts: 64})
	i := 0
	b.ReportAllocs()
	for b.Loop() {
		i++
		pod := onePod("main")
		pod.UID = types.UID(fmt.Sprint("uid-", i))
		if a := c.Apply(b.Context(), pod, startAll(pod), runtime.RunOptions{}); len(a.Failures) > 0 {
			b.Fatal(a.Failures)
		}
		if _, err := c.Pod(b.Context(), pod.UID); err != nil {
			b.Fatal(err)
		}
		b.StopTimer()
		f.mu.Lock()
		clear(f.sandboxes)
		clear(f.containers)
		clear(f.inSandbox)
		f.calls = nil
		f.mu.Unlock()
		b.StartTimer()
	}
}

// A listing of a node by its number of pods, and what it costs for each.
func BenchmarkPods(b *testing.B) {
	for _, n := range []int{100, 1000, 10_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			f := newFake()
			f.addImage(busybox)
			c := f.client(b, Config{InitialParallelStarts: 64})
			for i := range n {
				pod := onePod("main")
				pod.UID = types.UID(fmt.Sprint("uid-", i))
				f.fill(pod)
			}
			b.ReportAllocs()
			for b.Loop() {
				if _, err := c.Pods(b.Context()); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(n), "ns/pod")
		})
	}
}
