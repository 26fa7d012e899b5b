package stats_test

import (
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/stats"
)

// benchPods returns 500 pods with cgroups and without files.
func benchPods(b *testing.B) []stats.Pod {
	b.Helper()
	const root = "/sys/fs/cgroup"
	if _, err := os.Stat(root + "/memory/memory.stat"); err != nil || os.Getuid() != 0 {
		b.Skip("needs root and cgroup v1")
	}
	var pods []stats.Pod
	for i := range 500 {
		group := fmt.Sprintf("/lab/statsbench/pod%d", i)
		for _, h := range []string{"memory", "cpuacct", "pids"} {
			require.NoError(b, os.MkdirAll(root+"/"+h+group, 0o755))
		}
		pods = append(pods, stats.Pod{Pod: pod(types.UID(fmt.Sprint(i))), Cgroup: group})
	}
	b.Cleanup(func() {
		for _, h := range []string{"memory", "cpuacct", "pids"} {
			for _, p := range pods {
				os.Remove(root + "/" + h + p.Cgroup)
			}
			os.Remove(root + "/" + h + "/lab/statsbench")
		}
	})
	return pods
}

// One measurement of 500 pods from cgroups: the first one, and later ones, for which the
// kernel files are still open.
func BenchmarkUsage500Pods(b *testing.B) {
	pods := benchPods(b)
	make := func(b *testing.B) *stats.Provider {
		p, err := stats.New(stats.Config{NodeFS: "/", Pods: func() []stats.Pod { return pods }})
		require.NoError(b, err)
		return p
	}
	use := func(b *testing.B, p *stats.Provider) {
		u, err := p.Usage(b.Context(), time.Time{})
		if err != nil || u.Pods[499].Memory.At.IsZero() {
			b.Fatal(err)
		}
	}
	b.Run("again", func(b *testing.B) {
		p := make(b)
		b.ReportAllocs()
		for b.Loop() {
			use(b, p)
		}
	})
	b.Run("first", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			p := make(b)
			use(b, p)
		}
	})
}

// The measurement that is repeated while no threshold is met.
func BenchmarkNodeUsage(b *testing.B) {
	p, err := stats.New(stats.Config{NodeFS: "/"})
	require.NoError(b, err)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := p.NodeUsage(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
}
