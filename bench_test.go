package agent_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/runtime/embedded"
)

// No timer is on the critical path: a hundred pods start, change, fail and end while
// the clock of a bubble stands still.
func TestAgent_NeedsNoTimerToSyncPods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newHarness(t, &scenario{})
		w.start()
		synctest.Wait()
		began := time.Now()
		var jobs []*corev1.Pod
		for i := range 20 {
			job := simplePod(fmt.Sprint("job-", i), "start-error=on purpose")
			job.Spec.RestartPolicy = corev1.RestartPolicyNever
			jobs = append(jobs, job)
		}
		w.memory.Put(append(manyPods(100), jobs...)...)
		synctest.Wait()
		require.Len(t, w.running(), 100)
		for _, pod := range manyPods(100) {
			st := w.lastStatus(pod.Name)
			require.Equal(t, corev1.PodRunning, st.Phase, pod.Name)
		}
		changed := simplePod("pod-00050")
		changed.Spec.Containers[0].Image = "app:2"
		w.memory.Put(changed)
		synctest.Wait()
		st := w.lastStatus("pod-00050")
		assert.EqualValues(t, 1, st.ContainerStatuses[0].RestartCount)
		w.memory.Set()
		synctest.Wait()
		assert.Equal(t, "end, with nothing left in the runtime\n", w.left())
		assert.Zero(t, time.Since(began), "a sync waited for a timer")
		w.stop()
		w.shutDown()
	})
}

// SL-8, PL-8: a pod whose start hangs indefinitely neither makes the agent unhealthy
// nor delays another pod.
func TestAgent_HungPodDelaysNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newHarness(t, &scenario{})
		w.start()
		synctest.Wait()
		began := time.Now()
		w.memory.Put(append(manyPods(100), simplePod("hung", "start-hang=true"))...)
		synctest.Wait()
		require.Len(t, w.running(), 100)
		assert.Zero(t, time.Since(began), "another pod waited for the one that hangs")
		for i := range 15 {
			for range 12 {
				time.Sleep(5 * time.Second)
				require.NoError(t, w.current.agent.Healthy(), "after %s", time.Since(began))
			}
			at := time.Now()
			other := simplePod(fmt.Sprintf("pod-%05d", i))
			other.Spec.Containers[0].Image = "app:2"
			w.memory.Put(other, simplePod(fmt.Sprint("late-", i)))
			w.memory.Delete("default", fmt.Sprintf("pod-%05d", 99-i/2))
			synctest.Wait()
			late := w.lastStatus(fmt.Sprint("late-", i))
			require.Equal(t, corev1.PodRunning, late.Phase, "minute %d", i)
			require.Zero(t, time.Since(at))
		}
		hung := w.lastStatus("hung")
		require.Len(t, hung.ContainerStatuses, 1)
		assert.Nil(t, hung.ContainerStatuses[0].State.Running, "it never came up")
		w.memory.Set()
		time.Sleep(5 * time.Minute)
		synctest.Wait()
		assert.Equal(t, "end, with nothing left in the runtime\n", w.left())
		w.stop()
		w.shutDown()
	})
}

// BenchmarkOnePod measures one pod among others: the time from its creation until it
// is reported as running, and from its deletion until it is reported as deleted. The
// calls of the runtime are included.
func BenchmarkOnePod(b *testing.B) {
	for _, others := range []int{0, 100, 1000, 10000} {
		b.Run(fmt.Sprint("among=", others), func(b *testing.B) {
			n := startNode(b, true)
			defer n.end()
			if others > 0 {
				n.await(others, isRunning, func() { n.memory.Put(manyPods(others)...) })
			}
			time.Sleep(time.Second) // the work that follows the starts is done
			one := simplePod("one")
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
		pods := manyPods(300)
		if hung {
			pods[150].Annotations = map[string]string{embedded.ScriptPrefix + "start-hang": "true"}
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
