//go:build linux

package e2e

import (
	"cmp"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/internal/systest"
)

// envParallel is how many starts the agents of bursts begin with at a time, instead of the default.
const envParallel = "SUBLET_BENCH_PARALLEL_STARTS"

// BenchmarkBurst starts many pods at once and deletes them at once, with the agent and, in turns, with raw calls at several
// concurrencies, of which the best counts; with the kubelet too, if there is one. Beside busy=1 a process computes all the time.
func BenchmarkBurst(b *testing.B) {
	eachRuntime(b, func(b *testing.B, r *benchEnv) {
		r.tap.eventful = true
		if n := os.Getenv(envParallel); n != "" {
			var err error
			r.cri.InitialParallelStarts, err = strconv.Atoi(n)
			require.NoError(b, err, envParallel)
		}
		r.settled(b).stop()
		for _, pods := range []int{30, 100} {
			for busy := range 2 {
				b.Run(fmt.Sprintf("pods=%d/busy=%d", pods, busy), func(b *testing.B) { r.burst(b, pods, busy) })
			}
		}
	})
}

// burst measures one burst of the agent and of raw calls for each concurrency per iteration.
func (r *benchEnv) burst(b *testing.B, pods, busy int) {
	keepBusy(b, busy)
	concurrencies := []int{1, 4, 8, 30}
	firsts, ups, downs := map[int][]time.Duration{}, map[int][]time.Duration{}, map[int][]time.Duration{}
	faster, removed := map[int][]float64{}, map[int][]float64{} // time of the raw calls / that of the agent just before
	var single, first, middle, last, deleted, own, idle []time.Duration
	rawIdle := map[int][]time.Duration{}
	for b.Loop() {
		// Agent and raw calls take turns, so that a slow minute of the machine is not one of them alone.
		for _, c := range concurrencies {
			l := r.settled(b)
			before, idleBefore := systest.CPUTime(b), idleTime(b)
			took := l.up(b, r.burstPods(pods)...)
			own, idle = append(own, (systest.CPUTime(b)-before)/time.Duration(pods)), append(idle, idleTime(b)-idleBefore)
			first, middle, last = append(first, took[0]), append(middle, median(took)), append(last, took[pods-1])
			time.Sleep(readySignals)
			deleted = append(deleted, l.down(b, pods)[pods-1])
			r.empty(b)
			l.stop()

			alone := r.raw(b, 1)
			single = append(single, each(b, alone, 1, (*rawPod).up))
			time.Sleep(readySignals)
			each(b, alone, 1, (*rawPod).down)

			raw := r.raw(b, pods)
			idleBefore = idleTime(b)
			rawFirst, rawLast := firstAndAll(b, raw, c, (*rawPod).up)
			rawIdle[c] = append(rawIdle[c], idleTime(b)-idleBefore)
			firsts[c], ups[c] = append(firsts[c], rawFirst), append(ups[c], rawLast)
			time.Sleep(readySignals)
			rawDown := each(b, raw, c, (*rawPod).down)
			downs[c] = append(downs[c], rawDown)
			faster[c] = append(faster[c], float64(rawLast)/float64(took[pods-1]))
			removed[c] = append(removed[c], float64(rawDown)/float64(deleted[len(deleted)-1]))
		}
	}
	b.Logf("the agent: up %v, down %v", last, deleted)
	b.Logf("raw calls by concurrency: up %v, down %v", ups, downs)
	byRatio := func(ratios map[int][]float64) int {
		return slices.MinFunc(concurrencies, func(a, b int) int { return cmp.Compare(median(ratios[a]), median(ratios[b])) })
	}
	upAt, downAt := byRatio(faster), byRatio(removed)
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(ms(median(single)), "raw-single-ms")
	b.ReportMetric(ms(median(first)), "first-ms")
	b.ReportMetric(ms(median(middle)), "median-ms")
	b.ReportMetric(ms(median(last)), "last-ms")
	b.ReportMetric(float64(median(first))/float64(median(single)), "first/single")
	b.ReportMetric(float64(median(firsts[upAt]))/float64(median(single)), "raw-first/single")
	b.ReportMetric(float64(median(middle))/float64(median(last)), "median/last")
	b.ReportMetric(ms(median(ups[upAt])), "raw-up-ms")
	b.ReportMetric(float64(upAt), "raw-up-concurrency")
	b.ReportMetric(median(faster[upAt]), "throughput/raw")
	b.ReportMetric(ms(median(own)), "agent-CPU-ms/pod")
	b.ReportMetric(ms(median(idle)), "idle-ms")
	b.ReportMetric(ms(median(deleted)), "deleted-ms")
	b.ReportMetric(ms(median(downs[downAt])), "raw-down-ms")
	b.ReportMetric(float64(downAt), "raw-down-concurrency")
	b.ReportMetric(median(removed[downAt]), "deletion/raw")
	for _, c := range concurrencies {
		b.ReportMetric(ms(median(ups[c])), fmt.Sprintf("raw%d-up-ms", c))
		b.ReportMetric(ms(median(rawIdle[c])), fmt.Sprintf("raw%d-idle-ms", c))
		b.ReportMetric(ms(median(downs[c])), fmt.Sprintf("raw%d-down-ms", c))
		b.ReportMetric(median(faster[c]), fmt.Sprintf("throughput/raw%d", c))
		b.ReportMetric(median(removed[c]), fmt.Sprintf("deletion/raw%d", c))
	}
	if k := newKubelet(b, r, pods); k != nil {
		k.start(b)
		defer k.stop(b)
		k.burst(b, r.burstPods(pods)).report(b, "kubelet-")
	}
}

// idleTime is the time of the machine's processors together in which they had nothing to do or waited for a disk.
func idleTime(b *testing.B) time.Duration {
	const perSecond = 100 // USER_HZ, the unit of /proc/stat
	stat, err := os.ReadFile("/proc/stat")
	require.NoError(b, err)
	var user, nice, system, idle, disk int64
	_, err = fmt.Sscanf(string(stat), "cpu %d %d %d %d %d", &user, &nice, &system, &idle, &disk)
	require.NoError(b, err)
	return time.Duration(idle+disk) * time.Second / perSecond
}

func (r *benchEnv) burstPods(n int) []*corev1.Pod {
	pods := make([]*corev1.Pod, n)
	for i := range pods {
		pods[i] = r.pod(fmt.Sprint("p", i))
	}
	return pods
}

// keepBusy starts processes that compute until the end of the benchmark, also if it is killed.
func keepBusy(b *testing.B, processes int) {
	for range processes {
		cmd := exec.Command("sh", "-c", "while kill -0 $PPID; do i=0; while [ $i -lt 100000 ]; do i=$((i + 1)); done; done")
		require.NoError(b, cmd.Start())
		b.Cleanup(func() {
			_ = cmd.Process.Kill()
			_ = cmd.Wait() // killed
		})
	}
}
