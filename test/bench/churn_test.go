package bench

import (
	"fmt"
	"os"
	goruntime "runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/internal/agenttest"
	"github.com/sublet-dev/agent/internal/systest"
)

// benchChurn is the environment variable with the duration of the churn, such as 30m.
const benchChurn = "SUBLET_BENCH_CHURN"

// BenchmarkChurn replaces 50 of 1,000 pods a second: each is deleted, and another one is started. It measures what has grown from two
// fifths of that time to its end, when the same number of pods runs. Of half an hour these are twelve minutes: an agent remembers the
// UIDs of removed pods for ten, and as many of them at both times.
func BenchmarkChurn(b *testing.B) {
	const rate, batches = 50, 5 // batches a second
	pods := unlessSmoke(1000, 50)
	period := 30 * time.Second
	if text := os.Getenv(benchChurn); text != "" {
		var err error
		period, err = time.ParseDuration(text)
		require.NoError(b, err)
	}
	b.Run(fmt.Sprintf("pods=%d/rate=%d", pods, rate), func(b *testing.B) {
		for b.Loop() {
			n := startNode(b, true)
			c := &churnedPods{n: n}
			n.await(pods, isRunning, func() { c.start(pods) })
			warmUp := period * 2 / 5
			c.run(warmUp, batches, rate)
			memory, goroutines := c.idle()
			used, began := systest.CPUTime(b), time.Now()
			c.run(period-warmUp, batches, rate)
			b.ReportMetric(100*(systest.CPUTime(b)-used).Seconds()/time.Since(began).Seconds(), "%core")
			b.ReportMetric(float64(c.late)/float64(c.checked)*100, "%late")
			memoryAfter, goroutinesAfter := c.idle()
			b.ReportMetric(float64(int64(memoryAfter)-int64(memory))/1024, "grown-KiB")
			b.ReportMetric(float64(goroutinesAfter-goroutines), "grown-goroutines")
			b.ReportMetric(float64(c.next-pods), "replaced")
			n.end()
		}
		b.ReportMetric(0, "ns/op")
	})
}

// churnedPods are the pods of a churn: those from oldest on, without next.
type churnedPods struct {
	n             *testNode
	oldest, next  int
	late, checked int
}

func (c *churnedPods) name(i int) string { return fmt.Sprintf("pod-%07d", i) }

func (c *churnedPods) start(count int) {
	pods := make([]*corev1.Pod, count)
	for i := range pods {
		pods[i] = agenttest.Pod(c.name(c.next))
		c.next++
	}
	c.n.memory.Put(pods...)
}

// run replaces pods for a time. Those of the batch before last count as late if they are not reported as running.
func (c *churnedPods) run(period time.Duration, batches, rate int) {
	size := rate / batches
	ticker := time.NewTicker(time.Second / time.Duration(batches))
	defer ticker.Stop()
	for end := time.Now().Add(period); time.Now().Before(end); <-ticker.C {
		c.start(size)
		for range size {
			c.n.memory.Delete("default", c.name(c.oldest))
			c.oldest++
		}
		c.n.mu.Lock()
		for i := c.next - 3*size; i < c.next-2*size; i++ {
			c.checked++
			if !isRunning("", c.n.statuses[c.name(i)]) {
				c.late++
			}
		}
		for name, st := range c.n.statuses { // the benchmark itself must not grow
			if st == nil {
				delete(c.n.statuses, name)
			}
		}
		c.n.mu.Unlock()
	}
}

// idle waits until all pods run, those that were deleted are gone and the agent is idle, and returns the size of live objects and the number
// of goroutines: the least of five seconds, as buffers of what has just ended come and go. Stacks are left out: those that the Go
// runtime keeps for new goroutines come and go by more than a megabyte, while the number of goroutines is the same.
func (c *churnedPods) idle() (memory uint64, goroutines int) {
	pods := c.next - c.oldest
	require.Eventually(c.n.b, func() bool {
		c.n.mu.Lock()
		defer c.n.mu.Unlock()
		reported, running := 0, 0
		for _, st := range c.n.statuses {
			if st != nil {
				reported++
			}
			if isRunning("", st) {
				running++
			}
		}
		return reported == pods && running == pods && c.inRuntime() == pods
	}, 2*time.Minute, 100*time.Millisecond)
	c.n.settle()
	memory, goroutines = collected().HeapAlloc, goruntime.NumGoroutine()
	for range 5 {
		time.Sleep(time.Second)
		memory, goroutines = min(memory, collected().HeapAlloc), min(goroutines, goruntime.NumGoroutine())
	}
	return memory, goroutines
}

// inRuntime returns the number of pods that the agent has found in the runtime. Its cache also has some that are gone.
func (c *churnedPods) inRuntime() (pods int) {
	for _, pod := range c.n.agent.Components().PodCache.Pods() {
		if len(pod.Sandboxes)+len(pod.Containers) > 0 {
			pods++
		}
	}
	return pods
}
