package bench

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime/debug"
	"runtime/pprof"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/internal/agenttest"
)

// benchProfile is the environment variable with the file for a CPU profile of the idle
// time alone.
const benchProfile = "SUBLET_BENCH_PROFILE"

// BenchmarkIdle measures the CPU time of idle pods as a share of one core, and the
// wake-ups per second. It measures for the mean time between resyncs of a settled pod, so that
// all periodic work is included, and starts after the work that follows the start of the pods. Each container has a log
// that does not grow. The runtime is another process and not included.
//
// Idle pods are memory that is rarely used. What the machine takes for a page that was not used meanwhile is
// reported beside it: some hypervisors make that a thousand times as expensive.
func BenchmarkIdle(b *testing.B) {
	type variant struct {
		pods   int
		events bool
	}
	variants := unlessSmoke([]variant{{1000, true}, {1000, false}, {10000, true}}, []variant{{10, true}})
	for _, c := range variants {
		b.Run(fmt.Sprintf("pods=%d/events=%t", c.pods, c.events), func(b *testing.B) {
			n := startNode(b, c.events)
			defer n.end()
			pods := agenttest.Pods(c.pods)
			n.await(len(pods), isRunning, func() { n.memory.Put(pods...) })
			for _, pod := range pods {
				n.writeLog(pod, "the only line\n")
			}
			time.Sleep(unlessSmoke(90*time.Second, time.Second)) // each pod was synced while idle, and each log is watched
			debug.FreeOSMemory()                                 // memory of the start
			pages := newIdlePages(b)
			stopProfile := profile(b)
			var used unix.Rusage
			var took time.Duration
			for b.Loop() {
				began, before := time.Now(), usage(b)
				time.Sleep(unlessSmoke(375*time.Second, time.Second))
				used, took = spent(before, usage(b)), took+time.Since(began)
			}
			stopProfile()
			b.ReportMetric(float64(pages.use())/float64(time.Microsecond), "µs/idle-page")
			b.ReportMetric(float64(pages.use())/float64(time.Microsecond), "µs/used-page")
			user, system := time.Duration(used.Utime.Nano()), time.Duration(used.Stime.Nano())
			b.ReportMetric(100*(user+system).Seconds()/took.Seconds(), "%core")
			b.ReportMetric(100*system.Seconds()/took.Seconds(), "%core-system")
			b.ReportMetric(float64(used.Nvcsw)/took.Seconds(), "wakes/s")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// idlePages are pages of memory in the order in which they are used, which no prefetching finds.
type idlePages struct {
	memory []byte
	order  []int
	sum    byte
}

func newIdlePages(b *testing.B) *idlePages {
	size := unlessSmoke(32<<20, 1<<20)
	memory, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	require.NoError(b, err)
	b.Cleanup(func() { require.NoError(b, unix.Munmap(memory)) })
	p := &idlePages{memory: memory, order: rand.Perm(size / os.Getpagesize())}
	for i := range p.order { // a page that was only read is one that all share
		memory[i*os.Getpagesize()] = 1
	}
	return p
}

// use reads from each page, and returns what one took.
func (p *idlePages) use() time.Duration {
	began := time.Now()
	for _, i := range p.order {
		p.sum += p.memory[i*os.Getpagesize()]
	}
	return time.Since(began) / time.Duration(len(p.order))
}

// writeLog writes the log of a container as a real runtime does. The simulated one has no
// log of a container that writes nothing.
func (n *testNode) writeLog(pod *corev1.Pod, text string) {
	dirs, err := filepath.Glob(filepath.Join(filepath.Dir(n.socket), "root", "logs", pod.Namespace+"_"+pod.Name+"_*"))
	require.NoError(n.b, err)
	require.Len(n.b, dirs, 1)
	dir := filepath.Join(dirs[0], pod.Spec.Containers[0].Name)
	require.NoError(n.b, os.MkdirAll(dir, 0o750))
	require.NoError(n.b, os.WriteFile(filepath.Join(dir, "0.log"), []byte(text), 0o600))
}

func usage(b *testing.B) (u unix.Rusage) {
	require.NoError(b, unix.Getrusage(unix.RUSAGE_SELF, &u))
	return u
}

func spent(from, to unix.Rusage) unix.Rusage {
	return unix.Rusage{
		Utime: unix.NsecToTimeval(to.Utime.Nano() - from.Utime.Nano()),
		Stime: unix.NsecToTimeval(to.Stime.Nano() - from.Stime.Nano()),
		Nvcsw: to.Nvcsw - from.Nvcsw,
	}
}

// profile writes a CPU profile until the returned function is called, if the environment
// asks for it.
func profile(b *testing.B) func() {
	path := os.Getenv(benchProfile)
	if path == "" {
		return func() {}
	}
	f, err := os.Create(path)
	require.NoError(b, err)
	require.NoError(b, pprof.StartCPUProfile(f))
	return func() {
		pprof.StopCPUProfile()
		require.NoError(b, f.Close())
	}
}
