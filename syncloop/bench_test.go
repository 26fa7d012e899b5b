package syncloop_test

import (
	"fmt"
	goruntime "runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/podsource"
)

var sizes = []int{100, 1_000, 10_000}

// BenchmarkPods runs N pods through the loop, its handler and the workers on a runtime
// that answers immediately. It reports the overhead of the agent per pod.
func BenchmarkPods(b *testing.B) {
	for _, n := range sizes {
		pods := many(n)
		b.Run(fmt.Sprintf("add-and-end/N=%d", n), func(b *testing.B) {
			b.ReportAllocs()
			var up, down time.Duration
			for b.Loop() {
				x := startQuiet(b)
				began := time.Now()
				x.change(podsource.Add, pods...)
				x.until(func() bool { return x.settled(n) })
				ran := time.Now()
				x.change(podsource.Remove, pods...)
				x.until(func() bool { return len(x.workers.Snapshot()) == 0 })
				up, down = up+ran.Sub(began), down+time.Since(ran)
				x.stop()
			}
			per := func(d time.Duration) float64 { return float64(d.Nanoseconds()) / float64(b.N*n) }
			b.ReportMetric(per(up), "ns/pod-up")
			b.ReportMetric(per(down), "ns/pod-down")
		})
		b.Run(fmt.Sprintf("change-one/N=%d", n), func(b *testing.B) {
			x := startQuiet(b)
			x.change(podsource.Add, pods...)
			x.until(func() bool { return x.settled(n) })
			one := pod("one")
			b.ReportAllocs()
			for b.Loop() {
				x.change(podsource.Add, one)
				x.until(func() bool { return x.runs("one") })
				x.change(podsource.Remove, one)
				x.until(func() bool { return x.workers.IsFinished("one") || !x.workers.IsKnown("one") })
			}
		})
		b.Run(fmt.Sprintf("rest/N=%d", n), func(b *testing.B) {
			var before, after goruntime.MemStats
			x := startQuiet(b)
			goruntime.GC()
			goruntime.ReadMemStats(&before)
			x.change(podsource.Add, pods...)
			x.until(func() bool { return x.settled(n) })
			goruntime.GC()
			goruntime.ReadMemStats(&after)
			heap := int64(after.HeapAlloc) - int64(before.HeapAlloc) + int64(after.StackInuse) - int64(before.StackInuse)
			require.Less(b, heap, int64(n)*16<<10, "PW-16: memory at rest")
			for b.Loop() {
			}
			b.ReportMetric(float64(heap)/float64(n), "B/pod")
		})
	}
}

// BenchmarkHousekeeping checks N pods of which none needs a cleanup.
func BenchmarkHousekeeping(b *testing.B) {
	for _, n := range sizes {
		b.Run(fmt.Sprintf("N=%d", n), func(b *testing.B) {
			x := startQuiet(b)
			x.change(podsource.Add, many(n)...)
			x.until(func() bool { return x.settled(n) })
			x.stop()
			b.ReportAllocs()
			for b.Loop() {
				x.housekeeper.CleanupPods(b.Context())
			}
		})
	}
}

func startQuiet(tb testing.TB) *agent {
	m := newFakeNode()
	m.quiet = true
	return start(tb, m)
}

// until waits until done, checking after each pod that runs or was cleaned up.
func (a *agent) until(done func() bool) {
	for !done() {
		select {
		case <-a.progressCh:
		case <-time.After(time.Millisecond): // one signal can stand for two pods
		}
	}
}

func (a *agent) runs(uid types.UID) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.running[uid]
}

func (a *agent) settled(n int) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.running) == n
}
