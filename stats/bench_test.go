package stats_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/runtime"
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
		one := pod(types.UID(fmt.Sprint(i)))
		one.Name = fmt.Sprintf("pod%d", i)
		pods = append(pods, stats.Pod{Pod: one, Cgroup: group})
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

// oneOfEach is a runtime that reports a container of each pod.
type oneOfEach []stats.Pod

func (o oneOfEach) ContainerStats(context.Context) ([]runtime.ContainerUsage, error) {
	all := make([]runtime.ContainerUsage, 0, len(o))
	for _, p := range o {
		all = append(all, runtime.ContainerUsage{PodUID: p.Pod.UID, ID: "main", Name: "main", Running: true, Swap: runtime.SwapUsage{At: time.Now()}})
	}
	return all, nil
}

// A Summary of 500 pods, each with a process in a network namespace.
func BenchmarkSummary500Pods(b *testing.B) {
	pods := benchPods(b)
	// One namespace for all is as good as one for each: the file has the same content.
	script := "for i in $(seq 0 499); do sh -c 'echo $$ >/sys/fs/cgroup/pids/lab/statsbench/pod'$i'/c/cgroup.procs; exec sleep 1000' & done; echo ready; wait"
	for _, p := range pods {
		require.NoError(b, os.MkdirAll("/sys/fs/cgroup/pids"+p.Cgroup+"/c", 0o755))
	}
	cmd := exec.Command("unshare", "-n", "sh", "-c", script)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	require.NoError(b, cmd.Start())
	b.Cleanup(func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		_ = cmd.Wait()
		for _, p := range pods {
			dir := "/sys/fs/cgroup/pids" + p.Cgroup + "/c"
			require.Eventually(b, func() bool { return os.Remove(dir) == nil }, time.Minute, time.Millisecond)
		}
	})
	p, err := stats.New(stats.Config{NodeFS: "/", Pods: func() []stats.Pod { return pods }, ContainerStats: oneOfEach(pods)})
	require.NoError(b, err)
	measure := func() *stats.NetworkStats {
		s, err := p.Summary(b.Context(), "n", nil)
		if err != nil || s.Pods[499].Memory == nil {
			b.Fatal(err)
		}
		return s.Pods[499].Network
	}
	require.Eventually(b, func() bool { return measure() != nil }, time.Minute, 100*time.Millisecond)
	b.ReportAllocs()
	for b.Loop() {
		if measure() == nil {
			b.Fatal("no network")
		}
	}
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
