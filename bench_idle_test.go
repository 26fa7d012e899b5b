package agent_test

import (
	"fmt"
	"os"
	"runtime/pprof"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// benchProfile names a file for a CPU profile of the time at rest alone, if it is
// set.
const benchProfile = "SUBLET_BENCH_PROFILE"

// BenchmarkIdle is what 1,000 pods that nothing happens to cost, in a share of one
// core. It looks for long enough to see each pod's resync and all that is done
// once a minute, and begins when the last of the start has settled. The runtime is
// another process, which is not counted.
func BenchmarkIdle(b *testing.B) {
	for _, events := range []bool{true, false} {
		b.Run(fmt.Sprint("events=", events), func(b *testing.B) {
			n := startNode(b, events)
			defer n.end()
			n.await(1000, isRunning, func() { n.memory.Put(manyPods(1000)...) })
			time.Sleep(10 * time.Second)
			defer profile(b)()
			var used, took time.Duration
			for b.Loop() {
				before, began := cpu(b), time.Now()
				time.Sleep(70 * time.Second)
				used, took = used+cpu(b)-before, took+time.Since(began)
			}
			b.ReportMetric(100*used.Seconds()/took.Seconds(), "%core")
			b.ReportMetric(0, "ns/op")
		})
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
