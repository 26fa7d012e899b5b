package eviction_test

import (
	"context"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/eviction"
	"github.com/sublet-dev/agent/runtime"
)

// pressed is a sim whose kernel tells of pressure on memory as Linux does: each 2 s
// the average moves towards the part of the time that tasks waited, by 1-1/e^(1/5).
// The test says how much of the time they wait.
type pressed struct {
	*nodeSimulator
	stalled  float64 // of the time, up to 1
	noTotal  bool    // the total time waited is unknown
	avg      float64
	total    time.Duration
	moved    time.Time
	culprits map[types.UID]float64 // pods and what they add to stalled while they are there
}

func (p *pressed) Usage(ctx context.Context, since time.Time) (runtime.NodeUsage, error) {
	u, err := p.nodeSimulator.Usage(ctx, since)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.kernel()
	u.MemoryPressure = runtime.PSIStats{At: time.Now(), Full: runtime.PSIData{Avg10: p.avg}}
	if !p.noTotal {
		u.MemoryPressure.Full.Total = uint64(p.total.Microseconds())
	}
	return u, err
}

// kernel brings the figures up to now.
func (p *pressed) kernel() {
	if p.moved.IsZero() {
		p.moved = time.Now()
	}
	stalled := p.stalled
	for uid, part := range p.culprits {
		if p.pods[uid] != nil {
			stalled += part
		}
	}
	for ; time.Since(p.moved) >= 2*time.Second; p.moved = p.moved.Add(2 * time.Second) {
		p.avg += (stalled*100 - p.avg) * (1 - math.Exp(-0.2))
		p.total += time.Duration(stalled * float64(2*time.Second))
	}
}

// EV-2: pressure is a threshold of its own: one stall ends the one that causes it,
// and no other while the kernel's average is still on its way down.
func TestPressureThreshold(t *testing.T) {
	for _, noTotal := range []bool{false, true} {
		p := &pressed{nodeSimulator: newSim(), noTotal: noTotal, culprits: map[types.UID]float64{"culprit": 0.9}}
		p.takes = time.Second
		for i := range 8 {
			p.add(types.UID(fmt.Sprint("idle-", i)), "1Mi", 0, 20*mib)
		}
		p.add("culprit", "1Mi", 0, 100*mib)
		bubbleOver(t, p.nodeSimulator, p, eviction.Config{Thresholds: hardThresholds("memory.psi.full.avg10>20%")}, func(t *testing.T, m *eviction.Manager) {
			p.pause(5 * time.Minute)
			if assert.Equal(t, []string{"culprit"}, p.victims()) {
				assert.Regexp(t, `^The node was low on resource: memory\. Threshold pressure: 20%, pressure: \d\d\.\d\d%\. `+
					`Container main was using 100Mi, request is 1Mi, has larger consumption of memory\. $`, p.evicted[0].termination.Message)
			}
			assert.Equal(t, corev1.ConditionTrue, m.Conditions()[0].Status)
			p.pause(time.Minute)
			assert.Equal(t, corev1.ConditionFalse, m.Conditions()[0].Status)
		})
	}
}

// EV-2, EV-13: a stall that goes on takes the next one, and where it never ends they
// come further and further apart.
func TestPressureThatStays(t *testing.T) {
	for _, noTotal := range []bool{false, true} {
		p := &pressed{nodeSimulator: newSim(), noTotal: noTotal, culprits: map[types.UID]float64{"first": 0.4}, stalled: 0.5}
		for i := range 8 {
			p.add(types.UID(fmt.Sprint("idle-", i)), "1Mi", 0, 20*mib)
		}
		p.add("first", "1Mi", 0, 100*mib)
		bubbleOver(t, p.nodeSimulator, p, eviction.Config{Thresholds: hardThresholds("memory.psi.full.avg10>20%")}, func(t *testing.T, _ *eviction.Manager) {
			p.pause(time.Hour)
			if !assert.Len(t, p.evicted, 6, "%t", noTotal) {
				return
			}
			assert.Equal(t, "first", p.victims()[0])
			last := p.evicted[0].at
			for i, least := range []int{10, 40, 160, 640, 2560} {
				at := p.evicted[i+1].at
				assert.GreaterOrEqual(t, at.Sub(last), time.Duration(least)*time.Second)
				assert.Less(t, at.Sub(last), time.Duration(least+20)*time.Second)
				last = at
			}
		})
	}
}
