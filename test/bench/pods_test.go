package bench

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/internal/agenttest"
	"github.com/sublet-dev/agent/runtime/embedded/simulated"
)

// BenchmarkOnePod measures one pod among others: the time from its creation until it
// is reported as running, and from its deletion until it is reported as deleted. The
// calls of the runtime are included.
func BenchmarkOnePod(b *testing.B) {
	for _, others := range []int{0, 100, 1000, 10000} {
		b.Run(fmt.Sprint("among=", others), func(b *testing.B) {
			n := startNode(b, true)
			defer n.end()
			if others > 0 {
				n.await(others, isRunning, func() { n.memory.Put(agenttest.Pods(others)...) })
			}
			time.Sleep(time.Second) // the work that follows the starts is done
			one := agenttest.Pod("one")
			mine := func(is func(string, *corev1.PodStatus) bool) func(string, *corev1.PodStatus) bool {
				return func(name string, st *corev1.PodStatus) bool { return name == "one" && is(name, st) }
			}
			var up, change, down []time.Duration
			for round := 0; b.Loop(); round++ {
				up = append(up, n.await(1, mine(isRunning), func() { n.memory.Put(one) })...)
				other := one.DeepCopy()
				other.Spec.Containers[0].Image = fmt.Sprint("app:", 2+round%2)
				restarted := func(_ string, st *corev1.PodStatus) bool {
					return isRunning("", st) && st.ContainerStatuses[0].RestartCount == 1
				}
				change = append(change, n.await(1, mine(restarted), func() { n.memory.Put(other) })...)
				down = append(down, n.await(1, mine(isDeleted), func() { n.memory.Delete("default", "one") })...)
			}
			for name, d := range map[string][]time.Duration{"up": up, "change": change, "down": down} {
				b.ReportMetric(ms(median(sorted(d))), name+"-ms")
			}
			b.ReportMetric(0, "ns/op")
		})
	}
}

// BenchmarkHungPod starts 300 pods, alternately all healthy and with one that hangs,
// and measures how much longer the 299 others take. The agent must stay healthy.
func BenchmarkHungPod(b *testing.B) {
	round := func(hung bool) (middle, last time.Duration) {
		n := startNode(b, true)
		defer n.end()
		pods := agenttest.Pods(300)
		if hung {
			pods[150].Annotations = map[string]string{simulated.ScriptPrefix + "start-hang": "true"}
		}
		well := n.watchHealth()
		took := n.await(299, isRunning, func() { n.memory.Put(pods...) })
		well()
		return median(took), took[298]
	}
	var middle, last [2][]time.Duration
	for b.Loop() {
		for i := range 2 {
			m, l := round(i == 1)
			middle[i], last[i] = append(middle[i], m), append(last[i], l)
		}
	}
	ratio := func(d [2][]time.Duration) float64 {
		return float64(median(sorted(d[1]))) / float64(median(sorted(d[0])))
	}
	b.ReportMetric(ms(median(sorted(middle[1]))), "median-ms")
	b.ReportMetric(ratio(middle), "median-ratio")
	b.ReportMetric(ratio(last), "last-ratio")
	b.ReportMetric(0, "ns/op")
}
