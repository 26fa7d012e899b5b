package agent_test

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"runtime/pprof"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
)

// benchProfile names a file for a CPU profile of the time at rest alone, if it is
// set.
const benchProfile = "SUBLET_BENCH_PROFILE"

// BenchmarkIdle is what 1,000 pods that nothing happens to cost, in a share of one
// core, and how often a second they have the machine woken. It looks for long
// enough to see each pod's resync and all that is done once a minute, and begins
// when the last of the start has settled. Their logs are there and silent. The
// runtime is another process, which is not counted.
func BenchmarkIdle(b *testing.B) {
	for _, events := range []bool{true, false} {
		b.Run(fmt.Sprint("events=", events), func(b *testing.B) {
			n := startNode(b, events)
			defer n.end()
			pods := manyPods(1000)
			n.await(len(pods), isRunning, func() { n.memory.Put(pods...) })
			for _, pod := range pods {
				n.writeLog(pod, "the only line\n")
			}
			time.Sleep(90 * time.Second) // each has had a turn at rest, and their logs sleep
			debug.FreeOSMemory()         // what the start took is given back
			defer profile(b)()
			var used unix.Rusage
			var took time.Duration
			for b.Loop() {
				began, before := time.Now(), usage(b)
				time.Sleep(65 * time.Second)
				used, took = spent(before, usage(b)), took+time.Since(began)
			}
			user, system := time.Duration(used.Utime.Nano()), time.Duration(used.Stime.Nano())
			b.ReportMetric(100*(user+system).Seconds()/took.Seconds(), "%core")
			b.ReportMetric(100*system.Seconds()/took.Seconds(), "%core-system")
			b.ReportMetric(float64(used.Nvcsw)/took.Seconds(), "wakes/s")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// writeLog does what a real runtime would: the simulated one has no logs of
// containers that write nothing.
func (n *node) writeLog(pod *corev1.Pod, text string) {
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

// profile writes a CPU profile until the function that it returns is called, if
// one is wanted.
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
