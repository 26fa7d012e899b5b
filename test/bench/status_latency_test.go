package bench

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/internal/agenttest"
	"github.com/sublet-dev/agent/runtime/cri"
)

// BenchmarkStatusLatency measures the time from the exit and the start of a container,
// by the clock of the runtime, to the first status with it at a sink. Containers of
// 500 pods are killed at random times. The agent's calls of the runtime are included.
func BenchmarkStatusLatency(b *testing.B) {
	pods := unlessSmoke(500, 40)
	for _, rate := range []float64{5, 20} {
		b.Run(fmt.Sprintf("pods=%d/exits-per-second=%g", pods, rate), func(b *testing.B) {
			n := startNode(b, true)
			defer n.end()
			n.await(pods, isRunning, func() { n.memory.Put(agenttest.Pods(pods)...) })
			time.Sleep(unlessSmoke(5*time.Second, 0)) // the work that follows the starts is done
			w := newLatencyRecorder(b, n)
			for b.Loop() {
				w.disturb(rate, unlessSmoke(30*time.Second, 3*time.Second))
			}
			w.settle()
			ends, starts := w.latencies()
			for name, d := range map[string][]time.Duration{"exit": ends, "start": starts} {
				sorted(d)
				b.ReportMetric(ms(median(d)), name+"-p50-ms")
				b.ReportMetric(ms(d[len(d)*99/100]), name+"-p99-ms")
				b.ReportMetric(ms(d[len(d)-1]), name+"-max-ms")
				b.ReportMetric(float64(len(d)), name+"s")
			}
			b.ReportMetric(0, "ns/op")
		})
	}
}

// latencyRecorder compares the times of statuses with the times that the runtime
// reports.
type latencyRecorder struct {
	b  *testing.B
	rt v1.RuntimeServiceClient

	mu             sync.Mutex           // guards the rest
	reportedExits  map[string]time.Time // by container id: the first status with its termination
	reportedStarts map[string]time.Time // … with its start
	exits, starts  map[string]time.Time // the same by the runtime's clock
	running        []string             // as reported, without those that were killed
	started        []string             // reported as running since the recorder exists
}

func newLatencyRecorder(b *testing.B, n *testNode) *latencyRecorder {
	cc, err := cri.Dial("unix://" + n.socket)
	require.NoError(b, err)
	b.Cleanup(func() { _ = cc.Close() })
	w := &latencyRecorder{
		b: b, rt: v1.NewRuntimeServiceClient(cc), reportedExits: map[string]time.Time{}, reportedStarts: map[string]time.Time{},
		exits: map[string]time.Time{}, starts: map[string]time.Time{},
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, st := range n.statuses {
		id := bareID(st.ContainerStatuses[0].ContainerID)
		w.running = append(w.running, id)
		w.reportedStarts[id] = time.Now() // the time is not used: it was reported before
	}
	clear(n.at)
	n.want = func(_ string, st *corev1.PodStatus) bool { w.observe(st); return false }
	return w
}

func bareID(id string) string {
	_, id, _ = strings.Cut(id, "://")
	return id
}

// observe records the exits and starts that a status is the first to report.
func (w *latencyRecorder) observe(st *corev1.PodStatus) {
	now := time.Now()
	if st == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	c := &st.ContainerStatuses[0]
	for _, end := range []*corev1.ContainerStateTerminated{c.State.Terminated, c.LastTerminationState.Terminated} {
		if end == nil {
			continue
		}
		if id := bareID(end.ContainerID); w.reportedExits[id].IsZero() {
			w.reportedExits[id] = now
		}
	}
	if id := bareID(c.ContainerID); c.State.Running != nil && w.reportedStarts[id].IsZero() {
		w.reportedStarts[id] = now
		w.running = append(w.running, id)
		w.started = append(w.started, id)
	}
}

// disturb kills running containers at random times, at a mean rate per second.
func (w *latencyRecorder) disturb(rate float64, during time.Duration) {
	var wg sync.WaitGroup
	defer wg.Wait()
	for end := time.Now().Add(during); ; {
		time.Sleep(time.Duration(rand.ExpFloat64() / rate * float64(time.Second)))
		if time.Now().After(end) {
			return
		}
		w.mu.Lock()
		i := rand.IntN(len(w.running))
		id := w.running[i]
		w.running[i] = w.running[len(w.running)-1]
		w.running = w.running[:len(w.running)-1]
		w.mu.Unlock()
		wg.Go(func() { w.kill(id) })
	}
}

func (w *latencyRecorder) kill(id string) {
	_, err := w.rt.StopContainer(context.Background(), &v1.StopContainerRequest{ContainerId: id})
	if err != nil {
		w.b.Error(err)
		return
	}
	st, err := w.rt.ContainerStatus(context.Background(), &v1.ContainerStatusRequest{ContainerId: id})
	if err != nil {
		w.b.Error(err)
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.exits[id] = time.Unix(0, st.GetStatus().GetFinishedAt())
}

// settle waits until each exit is reported, and gets the start times from the runtime.
func (w *latencyRecorder) settle() {
	require.Eventually(w.b, func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		for id := range w.exits {
			if w.reportedExits[id].IsZero() {
				return false
			}
		}
		return true
	}, time.Minute, 10*time.Millisecond, "an exit was never reported")
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, id := range w.started {
		st, err := w.rt.ContainerStatus(context.Background(), &v1.ContainerStatusRequest{ContainerId: id})
		if err != nil {
			continue // killed again, and collected
		}
		w.starts[id] = time.Unix(0, st.GetStatus().GetStartedAt())
	}
}

// latencies returns the time from each exit and each start to its first status.
func (w *latencyRecorder) latencies() (ends, starts []time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for id, at := range w.exits {
		ends = append(ends, w.reportedExits[id].Sub(at))
	}
	for id, at := range w.starts {
		starts = append(starts, w.reportedStarts[id].Sub(at))
	}
	return ends, starts
}
