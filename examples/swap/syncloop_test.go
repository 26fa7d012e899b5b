package swap_test

import (
	"context"
	"fmt"
	"time"

	"github.com/sublet-dev/agent"
	"github.com/sublet-dev/agent/podworkers"
)

// loggingLoop prints when another SyncLoop starts and stops.
type loggingLoop struct{ agent.SyncLoop }

func (l loggingLoop) Run(ctx context.Context) error {
	fmt.Println("the loop starts")
	defer fmt.Println("the loop has stopped")
	return l.SyncLoop.Run(ctx)
}

func Example_syncLoopDecorated() {
	runPod(agent.WithSyncLoop(func(c *agent.Components) (agent.SyncLoop, error) {
		l, err := agent.NewSyncLoop(c)
		return loggingLoop{l}, err
	}))
	// Output:
	// the loop starts
	// the pod runs
	// the pod is gone
	// the loop has stopped
}

// smallLoop passes changes and events on. It removes what deleted pods have left, but
// neither terminates orphans nor retries rejected pods, and does not check its health.
type smallLoop struct{ c *agent.Components }

func (l smallLoop) Healthy() error { return l.c.RuntimeState.Healthy() }

func (l smallLoop) Run(ctx context.Context) error {
	for l.c.RuntimeState.Ready(ctx) != nil { // until then it is not known what runs already
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(10 * time.Millisecond):
		}
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case change := <-l.c.Sources.Changes():
			l.c.PodManager.HandlePodChange(change)
		case <-l.c.PLEG.Notify():
			for _, e := range l.c.PLEG.Drain() {
				l.c.PodManager.HandlePodSync(e.UID, podworkers.RequeueEvent)
			}
		case <-l.c.Prober.Notify():
			for _, r := range l.c.Prober.Drain() {
				l.c.PodManager.HandlePodSync(r.UID, podworkers.RequeueNow)
			}
		case <-l.c.PodWorkers.NotifyFinished():
			desired := l.c.PodManager.AddDesiredUIDs(nil)
			for _, uid := range l.c.PodWorkers.DrainFinished() {
				if _, ok := desired[uid]; !ok {
					l.c.PodWorkers.ForgetFinished(uid, false)
					l.c.StatusManager.Forget(uid)
				}
			}
		}
	}
}

func Example_syncLoopOwn() {
	runPod(agent.WithSyncLoop(func(c *agent.Components) (agent.SyncLoop, error) { return smallLoop{c}, nil }))
	// Output:
	// the pod runs
	// the pod is gone
}
