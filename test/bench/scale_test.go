package bench

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent"
	"github.com/sublet-dev/agent/internal/agenttest"
	"github.com/sublet-dev/agent/internal/notify"
	"github.com/sublet-dev/agent/internal/systest"
	"github.com/sublet-dev/agent/pleg"
	"github.com/sublet-dev/agent/runtime/cri"
)

// maxMemory is the limit for the memory of an idle pod, in KiB, without the copy of the
// pod in the source, but with the agent's own copy.
const maxMemory = 16

// BenchmarkManyPods starts many pods at once, waits until they are idle, changes one, and
// deletes all. Some other pods are started and deleted before, so that memory allocated
// once, for threads, buffers of connections and tables of types, is not counted for the
// pods. "once-KiB" is that memory.
func BenchmarkManyPods(b *testing.B) {
	for _, pods := range sizes(100, 1000, 10000) {
		b.Run(fmt.Sprint("pods=", pods), func(b *testing.B) {
			warm := min(200, 2*pods)
			for b.Loop() {
				own := heap()
				all := agenttest.Pods(pods)
				before := heap()
				own = before - own
				n := startNode(b, true)
				for range unlessSmoke(3, 1) {
					n.await(warm, isRunning, func() { n.memory.Put(agenttest.Pods(warm)...) })
					n.await(warm, isDeleted, func() { n.memory.Set() })
					n.settle()
				}
				none := n.memoryInUse()
				b.ReportMetric((float64(none)-float64(before))/1024, "once-KiB")

				used := systest.CPUTime(b)
				up := n.await(pods, isRunning, func() { n.memory.Put(all...) })
				b.ReportMetric(up[len(up)-1].Seconds(), "up-s")
				b.ReportMetric(ms(up[len(up)-1])/float64(pods), "up-ms/pod")
				b.ReportMetric(n.settle().Seconds(), "settle-s")
				b.ReportMetric(ms(systest.CPUTime(b)-used)/float64(pods), "up-cpu-ms/pod")

				// The source keeps its own copy, which is as large as all.
				each := float64(n.memoryInUse()-none-own) / float64(pods) / 1024
				b.ReportMetric(each, "KiB/pod")
				b.ReportMetric(float64(own)/float64(pods)/1024, "put-KiB/pod")
				if pods >= 100 { // fewer share what all need once
					require.Less(b, each, float64(maxMemory))
				}

				b.ReportMetric(ms(n.change(all[pods/2], unlessSmoke(25, 3))), "change-ms")

				used = systest.CPUTime(b)
				down := n.await(pods, isDeleted, func() { n.memory.Set() })
				b.ReportMetric(down[len(down)-1].Seconds(), "down-s")
				b.ReportMetric(ms(down[len(down)-1])/float64(pods), "down-ms/pod")
				n.settle()
				b.ReportMetric(ms(systest.CPUTime(b)-used)/float64(pods), "down-cpu-ms/pod")
				b.ReportMetric((float64(n.memoryInUse())-float64(none))/float64(pods)/1024, "left-KiB/pod")
				n.end()
			}
			b.ReportMetric(0, "ns/op")
		})
	}
}

// settle waits until the agent is idle: it has used less than a fifth of a core for
// half a second. It returns the time before that half second.
func (n *testNode) settle() time.Duration {
	const interval, quietIntervals = 50 * time.Millisecond, 10
	began := time.Now()
	for quiet := 0; quiet < quietIntervals; {
		used := systest.CPUTime(n.b)
		time.Sleep(interval)
		if systest.CPUTime(n.b)-used < interval/5 {
			quiet++
		} else {
			quiet = 0
		}
		require.Less(n.b, time.Since(began), 5*time.Minute)
	}
	return max(0, time.Since(began)-quietIntervals*interval)
}

// memoryInUse returns the memory in use without that of the benchmark.
func (n *testNode) memoryInUse() uint64 {
	n.mu.Lock()
	n.statuses, n.at = map[string]*corev1.PodStatus{}, map[string]time.Time{}
	n.mu.Unlock()
	return heap()
}

// change repeatedly changes the image of a running pod, and returns the median time
// until the pod is reported as running with it.
func (n *testNode) change(pod *corev1.Pod, times int) time.Duration {
	var took []time.Duration
	for i := range times {
		other := pod.DeepCopy()
		other.Spec.Containers[0].Image = fmt.Sprint("app:", 2+i%2) // pulls are bounded
		restarted := func(name string, st *corev1.PodStatus) bool {
			return name == pod.Name && isRunning(name, st) && st.ContainerStatuses[0].RestartCount > int32(i)
		}
		took = append(took, n.await(1, restarted, func() { n.memory.Put(other) })...)
	}
	return median(sorted(took))
}

// listings records the relists of an agent.
type listings struct {
	next chan struct{} // one slot: another relist ended

	mu  sync.Mutex // guards all
	all []listing
}

type listing struct {
	began   time.Time
	took    time.Duration
	changed int
}

func (l *listings) listed(took time.Duration, _, changed int, _ error) {
	l.mu.Lock()
	l.all = append(l.all, listing{time.Now().Add(-took), took, changed})
	l.mu.Unlock()
	notify.Send(l.next)
}

// since returns the relists that started after a time.
func (l *listings) since(at time.Time) (found []listing) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, x := range l.all {
		if x.began.After(at) {
			found = append(found, x)
		}
	}
	return found
}

// BenchmarkRelist measures a relist, which an agent without an event stream makes once
// a second: without a change, the duration of the call and of the comparison; after
// the containers of one pod in a hundred have exited, the time from the start of the
// relist that finds it until all are reported as running again.
func BenchmarkRelist(b *testing.B) {
	for _, pods := range []int{100, 1000, 10000} {
		b.Run(fmt.Sprint("pods=", pods), func(b *testing.B) {
			l := &listings{next: make(chan struct{}, 1)}
			n := startNode(b, false, agent.WithHooks(agent.Hooks{PLEG: pleg.Hooks{Relisted: l.listed}}))
			defer n.end()
			n.await(pods, isRunning, func() { n.memory.Put(agenttest.Pods(pods)...) })
			time.Sleep(5 * time.Second) // the work that follows the starts is done
			rt, ids := n.containers()
			var still, some []time.Duration
			for round := 0; b.Loop(); round++ {
				quiet := time.Now()
				for range 4 {
					<-l.next
				}
				for _, x := range l.since(quiet) {
					if x.changed == 0 {
						still = append(still, x.took)
					}
				}
				percent := max(1, pods/100)
				require.GreaterOrEqual(b, len(ids), percent, "each container is stopped once, so that none waits for its back-off")
				some = append(some, n.endSome(l, rt, ids[:percent]))
				ids = ids[percent:]
			}
			b.ReportMetric(ms(median(sorted(still))), "nothing-ms")
			b.ReportMetric(1000*ms(median(sorted(still)))/float64(pods), "nothing-µs/pod")
			b.ReportMetric(ms(median(sorted(some))), "percent-ms")
			b.ReportMetric(ms(median(sorted(some)))/float64(max(1, pods/100)), "percent-ms/changed")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// endSome stops containers right after a relist, and returns the time from the start
// of the next one until the last of them is reported as running again.
func (n *testNode) endSome(l *listings, rt v1.RuntimeServiceClient, ids []string) time.Duration {
	<-l.next
	began := time.Now()
	restarts := n.await(len(ids), func(name string, st *corev1.PodStatus) bool {
		return isRunning(name, st) && st.ContainerStatuses[0].RestartCount == 1
	}, func() {
		for _, id := range ids {
			_, err := rt.StopContainer(n.b.Context(), &v1.StopContainerRequest{ContainerId: id})
			require.NoError(n.b, err)
		}
	})
	end := time.Now()
	for _, x := range l.since(began) {
		if x.changed > 0 {
			return began.Add(restarts[len(restarts)-1]).Sub(x.began)
		}
	}
	n.b.Fatalf("no relist found what was reported %s ago", time.Since(end))
	return 0
}

// containers returns a connection to the runtime and the ids of its containers.
func (n *testNode) containers() (v1.RuntimeServiceClient, []string) {
	cc, err := cri.Dial("unix://" + n.socket)
	require.NoError(n.b, err)
	n.b.Cleanup(func() { _ = cc.Close() })
	rt := v1.NewRuntimeServiceClient(cc)
	all, err := rt.ListContainers(n.b.Context(), &v1.ListContainersRequest{})
	require.NoError(n.b, err)
	ids := make([]string, len(all.GetContainers()))
	for i, c := range all.GetContainers() {
		ids[i] = c.GetId()
	}
	return rt, ids
}
