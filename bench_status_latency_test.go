package agent_test

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

	"github.com/sublet-dev/agent/runtime/cri"
)

// BenchmarkStatusLatency has 500 pods whose containers somebody kills at random moments,
// and tells how long after each end and each start, by the runtime's own clock,
// the first status that shows it came to a sink. The agent's calls of the runtime
// are in it.
func BenchmarkStatusLatency(b *testing.B) {
	for _, rate := range []float64{5, 20} {
		b.Run(fmt.Sprintf("pods=500/ends-a-second=%g", rate), func(b *testing.B) {
			n := startNode(b, true)
			defer n.end()
			n.await(500, isRunning, func() { n.memory.Put(manyPods(500)...) })
			time.Sleep(5 * time.Second) // what follows starts has ended
			w := newWitness(b, n)
			for b.Loop() {
				w.disturb(rate, 30*time.Second)
			}
			w.settle()
			ends, starts := w.late()
			for name, d := range map[string][]time.Duration{"end": ends, "start": starts} {
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

// latencyRecorder holds what is told against what the runtime says.
type latencyRecorder struct {
	b  *testing.B
	rt v1.RuntimeServiceClient

	mu            sync.Mutex           // guards the rest
	endedTold     map[string]time.Time // container id: when it was first told as ended
	startedTold   map[string]time.Time // … and as running
	ended, starts map[string]time.Time // the same by the runtime's clock
	running       []string             // as told, those left out that were killed
	begun         []string             // were told as running since
}

func newWitness(b *testing.B, n *node) *latencyRecorder {
	cc, err := cri.Dial("unix://" + n.socket)
	require.NoError(b, err)
	b.Cleanup(func() { _ = cc.Close() })
	w := &latencyRecorder{
		b: b, rt: v1.NewRuntimeServiceClient(cc), endedTold: map[string]time.Time{}, startedTold: map[string]time.Time{},
		ended: map[string]time.Time{}, starts: map[string]time.Time{},
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, st := range n.seen {
		id := bareID(st.ContainerStatuses[0].ContainerID)
		w.running = append(w.running, id)
		w.startedTold[id] = time.Now() // it was before
	}
	clear(n.at)
	n.want = func(_ string, st *corev1.PodStatus) bool { w.hear(st); return false }
	return w
}

func bareID(id string) string {
	_, id, _ = strings.Cut(id, "://")
	return id
}

// hear notes what a status is the first one to tell.
func (w *latencyRecorder) hear(st *corev1.PodStatus) {
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
		if id := bareID(end.ContainerID); w.endedTold[id].IsZero() {
			w.endedTold[id] = now
		}
	}
	if id := bareID(c.ContainerID); c.State.Running != nil && w.startedTold[id].IsZero() {
		w.startedTold[id] = now
		w.running = append(w.running, id)
		w.begun = append(w.begun, id)
	}
}

// disturb kills containers that run, so many a second, at moments that nothing
// can foresee.
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
	w.ended[id] = time.Unix(0, st.GetStatus().GetFinishedAt())
}

// settle waits until each end was told, and asks the runtime for the starts.
func (w *latencyRecorder) settle() {
	require.Eventually(w.b, func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		for id := range w.ended {
			if w.endedTold[id].IsZero() {
				return false
			}
		}
		return true
	}, time.Minute, 10*time.Millisecond, "an end was never told")
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, id := range w.begun {
		st, err := w.rt.ContainerStatus(context.Background(), &v1.ContainerStatusRequest{ContainerId: id})
		if err != nil {
			continue // it was killed again and collected
		}
		w.starts[id] = time.Unix(0, st.GetStatus().GetStartedAt())
	}
}

// late returns how much later than they happened ends and starts were told.
func (w *latencyRecorder) late() (ends, starts []time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for id, at := range w.ended {
		ends = append(ends, w.endedTold[id].Sub(at))
	}
	for id, at := range w.starts {
		starts = append(starts, w.startedTold[id].Sub(at))
	}
	return ends, starts
}
