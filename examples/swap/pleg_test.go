package swap_test

import (
	"context"
	"fmt"
	"reflect"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent"
	"github.com/sublet-dev/agent/pleg"
	"github.com/sublet-dev/agent/runtime"
)

// countingPLEG counts the events of another PLEG.
type countingPLEG struct {
	agent.PLEG
	events *counter
}

func (p countingPLEG) Drain() []pleg.Event {
	events := p.PLEG.Drain()
	for range events {
		p.events.add()
	}
	return events
}

func Example_plegDecorated() {
	var events counter
	runPod(agent.WithPLEG(func(c *agent.Components) (agent.PLEG, error) {
		p, err := agent.NewPLEG(c)
		return countingPLEG{p, &events}, err
	}))
	fmt.Println("events counted:", events.wasCalled())
	// Output:
	// the pod runs
	// the pod is gone
	// events counted: true
}

// pollingPLEG inspects all pods ten times a second. It has no event stream, no deferral
// while a pod is synced, and no bound on a call that hangs.
type pollingPLEG struct {
	c      *agent.Components
	notify chan struct{}

	mu     sync.Mutex
	events []pleg.Event
}

func (p *pollingPLEG) Run(ctx context.Context) error {
	ticker := time.NewTicker(100 * time.Millisecond)
	defer ticker.Stop()
	for {
		p.relist(ctx)
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

func (p *pollingPLEG) relist(ctx context.Context) {
	start := time.Now()
	listed, err := p.c.Runtime.Pods(ctx)
	absent := map[types.UID]bool{}
	if err == nil {
		for _, pod := range p.c.PodCache.Pods() {
			absent[pod.UID] = true
		}
		for _, pod := range listed {
			_, _ = p.GetNewerThan(ctx, pod.UID, start)
			delete(absent, pod.UID)
		}
	}
	for uid := range absent {
		p.c.PodCache.Delete(uid)
		p.emit(uid)
	}
	p.c.RuntimeState.Relisted(time.Since(start), len(listed), 0, err)
}

// GetNewerThan always inspects the pod.
func (p *pollingPLEG) GetNewerThan(ctx context.Context, uid types.UID, _ time.Time) (runtime.Pod, error) {
	at := time.Now()
	pod, err := p.c.Runtime.Pod(ctx, uid)
	before, _ := p.c.PodCache.Get(uid)
	p.c.PodCache.Set(uid, pod, err, at)
	after := pod
	if before.ObservedAt, after.ObservedAt = at, at; err == nil && !reflect.DeepEqual(before, after) {
		p.emit(uid)
	}
	return pod, err
}

func (p *pollingPLEG) emit(uid types.UID) {
	p.mu.Lock()
	p.events = append(p.events, pleg.Event{Type: pleg.PodSync, UID: uid})
	p.mu.Unlock()
	select {
	case p.notify <- struct{}{}:
	default:
	}
}

func (p *pollingPLEG) Notify() <-chan struct{} { return p.notify }

func (p *pollingPLEG) Drain() []pleg.Event {
	p.mu.Lock()
	defer p.mu.Unlock()
	events := p.events
	p.events = nil
	return events
}

func (p *pollingPLEG) IsRunning(uid types.UID) bool {
	pod, ok := p.c.PodCache.Get(uid)
	return ok && (pod.CouldHaveRunningContainers() || pod.ReadySandbox() != nil)
}

func (p *pollingPLEG) RequestInspection(types.UID)              {} // the next poll inspects it
func (p *pollingPLEG) SyncStarted(types.UID)                    {}
func (p *pollingPLEG) SyncEnded(types.UID, bool)                {}
func (p *pollingPLEG) Uninspected() []types.UID                 { return nil }
func (p *pollingPLEG) InspectionErrors() []pleg.InspectionError { return nil }
func (p *pollingPLEG) Healthy() error                           { return nil }

func Example_plegOwn() {
	runPod(agent.WithPLEG(func(c *agent.Components) (agent.PLEG, error) {
		return &pollingPLEG{c: c, notify: make(chan struct{}, 1)}, nil
	}))
	// Output:
	// the pod runs
	// the pod is gone
}
