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

// quietPeriod is a runtime that answers at once with what it was given.
type quietPeriod struct {
	pods []runtime.Pod
	at   map[types.UID]int
}

func stillOf(n int) *quietPeriod {
	s := &quietPeriod{at: map[types.UID]int{}}
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

func (s *quietPeriod) Pods(context.Context) ([]runtime.Pod, error) { return s.pods, nil }

func (s *quietPeriod) Pod(_ context.Context, uid types.UID) (runtime.Pod, error) {
	return s.pods[s.at[uid]], nil
}

func (s *quietPeriod) Watch(ctx context.Context, _ func(types.UID)) error {
	<-ctx.Done()
	return ctx.Err()
}

// settled returns a Generator that has listed and inspected all of s once.
func settled(b *testing.B, s *quietPeriod) *Generator {
	g, err := New(Config{Runtime: s, Cache: new(podcache.Cache)})
	require.NoError(b, err)
	require.NoError(b, g.start(b.Context()))
	g.allowInspections()
	g.listOnce(b.Context(), nil)
	g.wg.Wait()
	g.Drain()
	b.Cleanup(g.stop)
	return g
}

// BenchmarkList is the agent's own share of one listing, by what has changed.
func BenchmarkList(b *testing.B) {
	for _, n := range []int{100, 1000, 10000} {
		for _, percent := range []int{0, 1} {
			b.Run(fmt.Sprintf("pods=%d/changed=%d%%", n, percent), func(b *testing.B) {
				s := stillOf(n)
				g := settled(b, s)
				var prints []uint64
				b.ReportAllocs()
				round := 0
				for b.Loop() {
					round++
					for i := range n * percent / 100 {
						p := &s.pods[(i*97+round)%n]
						p.Containers = []runtime.Container{p.Containers[0], p.Containers[1]}
						p.Containers[1].State = runtime.Running + runtime.ContainerState(round%2)
					}
					prints = g.listOnce(b.Context(), prints[:0])
					g.wg.Wait()
					g.Drain()
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(n), "ns/pod")
			})
		}
	}
}

// BenchmarkOneChange is what one hint costs among many pods.
func BenchmarkOneChange(b *testing.B) {
	for _, n := range []int{100, 1000, 10000} {
		b.Run(fmt.Sprintf("pods=%d", n), func(b *testing.B) {
			s := stillOf(n)
			g := settled(b, s)
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				i++
				p := &s.pods[i%n]
				p.Containers = []runtime.Container{p.Containers[0], p.Containers[1]}
				p.Containers[1].State = runtime.Exited - p.Containers[1].State + runtime.Running
				_, l, _ := g.requestNewerThan(p.UID, g.pods[p.UID].observedAt)
				<-l.done
				g.Drain()
			}
		})
	}
}

// BenchmarkMemory tells what a pod at rest costs beside its view.
func BenchmarkMemory(b *testing.B) {
	const n = 10000
	s := stillOf(n)
	for b.Loop() {
		var before, after goruntime.MemStats
		goruntime.GC()
		goruntime.ReadMemStats(&before)
		g := settled(b, s)
		goruntime.GC()
		goruntime.ReadMemStats(&after)
		b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/n, "B/pod")
		goruntime.KeepAlive(g)
	}
}
