package pleg

import (
	"context"
	"fmt"
	goruntime "runtime"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/podcache"
	"github.com/sublet-dev/agent/runtime"
)

// staticRuntime is a runtime that returns its pods without delay.
type staticRuntime struct {
	pods []runtime.Pod
	at   map[types.UID]int
}

func newStaticRuntime(n int) *staticRuntime {
	s := &staticRuntime{at: map[types.UID]int{}}
	for i := range n {
		uid := types.UID(fmt.Sprintf("7c9f0a52-9d5b-4f0a-b8a1-%012d", i))
		p := runtime.Pod{UID: uid, Sandboxes: []runtime.Sandbox{{ID: fmt.Sprintf("%064d", i), State: runtime.SandboxReady}}}
		for j := range 2 {
			p.Containers = append(p.Containers, runtime.Container{
				ID: fmt.Sprintf("%032d%032d", i, j), Name: fmt.Sprint("c", j), State: runtime.Running,
			})
		}
		s.at[uid] = i
		s.pods = append(s.pods, p)
	}
	return s
}

func (s *staticRuntime) Pods(context.Context) ([]runtime.Pod, error) { return s.pods, nil }

func (s *staticRuntime) Pod(_ context.Context, uid types.UID) (runtime.Pod, error) {
	return s.pods[s.at[uid]], nil
}

func (s *staticRuntime) Watch(ctx context.Context, _ func(types.UID)) error {
	<-ctx.Done()
	return ctx.Err()
}

// listedGenerator returns a Generator that has listed and inspected all pods of s once.
func listedGenerator(b *testing.B, s *staticRuntime) *Generator {
	g, err := New(Config{Runtime: s, Cache: new(podcache.Cache)})
	require.NoError(b, err)
	require.NoError(b, g.start(b.Context()))
	g.allowInspections()
	g.relist(b.Context(), nil)
	g.wg.Wait()
	g.Drain()
	b.Cleanup(g.stop)
	return g
}

// BenchmarkGenerator_Relist measures one relist without the runtime's share, by the
// number of changed pods.
func BenchmarkGenerator_Relist(b *testing.B) {
	for _, n := range []int{100, 1000, 10000} {
		for _, percent := range []int{0, 1} {
			b.Run(fmt.Sprintf("pods=%d/changed=%d%%", n, percent), func(b *testing.B) {
				s := newStaticRuntime(n)
				g := listedGenerator(b, s)
				var fingerprints []uint64
				b.ReportAllocs()
				iteration := 0
				for b.Loop() {
					iteration++
					for i := range n * percent / 100 {
						p := &s.pods[(i*97+iteration)%n]
						p.Containers = []runtime.Container{p.Containers[0], p.Containers[1]}
						p.Containers[1].State = runtime.Running + runtime.ContainerState(iteration%2)
					}
					fingerprints = g.relist(b.Context(), fingerprints[:0])
					g.wg.Wait()
					g.Drain()
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(n), "ns/pod")
			})
		}
	}
}

// BenchmarkGenerator_Inspect measures one inspection among many pods.
func BenchmarkGenerator_Inspect(b *testing.B) {
	for _, n := range []int{100, 1000, 10000} {
		b.Run(fmt.Sprintf("pods=%d", n), func(b *testing.B) {
			s := newStaticRuntime(n)
			g := listedGenerator(b, s)
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				i++
				p := &s.pods[i%n]
				p.Containers = []runtime.Container{p.Containers[0], p.Containers[1]}
				p.Containers[1].State = runtime.Exited - p.Containers[1].State + runtime.Running
				_, in, _ := g.requestNewerThan(p.UID, g.pods[p.UID].observedAt)
				<-in.done
				g.Drain()
			}
		})
	}
}

// BenchmarkGenerator_Memory measures the memory of an idle pod besides its observed
// state.
func BenchmarkGenerator_Memory(b *testing.B) {
	const n = 10000
	s := newStaticRuntime(n)
	for b.Loop() {
		var before, after goruntime.MemStats
		goruntime.GC()
		goruntime.ReadMemStats(&before)
		g := listedGenerator(b, s)
		goruntime.GC()
		goruntime.ReadMemStats(&after)
		b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/n, "B/pod")
		goruntime.KeepAlive(g)
	}
}
