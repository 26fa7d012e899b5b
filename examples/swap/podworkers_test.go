package swap_test

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent"
	"github.com/sublet-dev/agent/podworkers"
	"github.com/sublet-dev/agent/runtime"
)

// announcingWorkers prints the name of each pod that other workers get.
type announcingWorkers struct{ agent.PodWorkers }

func (w announcingWorkers) Update(u podworkers.Update) {
	if u.Type == podworkers.PodCreate {
		fmt.Printf("pod %s/%s is new\n", u.Pod.Namespace, u.Pod.Name)
	}
	w.PodWorkers.Update(u)
}

func Example_podWorkersDecorated() {
	runPod(agent.WithPodWorkers(func(c *agent.Components) (agent.PodWorkers, error) {
		w, err := agent.NewPodWorkers(c)
		return announcingWorkers{w}, err
	}))
	// Output:
	// pod default/web is new
	// the pod runs
	// the pod is gone
}

// goWorkers has a goroutine for each pod, which syncs it twenty times a second. It knows
// no back-off, does not shorten a grace period, and leaves orphans alone.
type goWorkers struct {
	c      *agent.Components
	ctx    context.Context //nolint:containedctx // of the goroutines of all pods; Run cancels it
	cancel context.CancelFunc
	notify chan struct{}
	wg     sync.WaitGroup

	mu       sync.Mutex
	pods     map[types.UID]*goPod
	complete bool // all sources have synced
	finished []types.UID
}

type goPod struct {
	pod   *corev1.Pod
	phase podworkers.Phase
	kill  *podworkers.KillOptions
	done  chan struct{} // closed when it has finished
}

func newGoWorkers(c *agent.Components) (agent.PodWorkers, error) {
	ctx, cancel := context.WithCancel(context.Background())
	return &goWorkers{c: c, ctx: ctx, cancel: cancel, notify: make(chan struct{}, 1), pods: map[types.UID]*goPod{}}, nil
}

func (w *goWorkers) Run(ctx context.Context) error {
	<-ctx.Done()
	w.cancel()
	w.wg.Wait()
	return nil
}

func (w *goWorkers) Update(u podworkers.Update) {
	if u.Pod == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	p := w.pods[u.Pod.UID]
	if p == nil {
		p = &goPod{done: make(chan struct{})}
		w.pods[u.Pod.UID] = p
		w.wg.Go(func() { w.work(u.Pod.UID, p) })
	}
	p.pod = u.Pod
	switch {
	case p.kill != nil:
	case u.Kill != nil:
		p.kill = u.Kill
	case u.Pod.DeletionTimestamp != nil:
		p.kill = &podworkers.KillOptions{}
	}
}

// work syncs a pod until it is killed, and ends it then.
func (w *goWorkers) work(uid types.UID, p *goPod) {
	ticker := time.NewTicker(50 * time.Millisecond)
	defer ticker.Stop()
	for w.step(uid, p) {
		select {
		case <-w.ctx.Done():
			return
		case <-ticker.C:
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.finished = append(w.finished, uid)
	close(p.done)
	select {
	case w.notify <- struct{}{}:
	default:
	}
}

// step makes the call that is due. It reports false when the pod has finished.
func (w *goWorkers) step(uid types.UID, p *goPod) bool {
	w.mu.Lock()
	pod, kill, phase := p.pod, p.kill, p.phase
	w.mu.Unlock()
	observed, err := w.c.PLEG.GetNewerThan(w.ctx, uid, time.Now())
	if err != nil {
		return true
	}
	switch {
	case kill == nil:
		_, _ = w.c.Syncer.Sync(w.ctx, pod, observed)
	case phase < podworkers.Terminated:
		w.setPhase(p, podworkers.Terminating)
		if w.c.Syncer.Terminate(w.ctx, pod, observed, kill.Termination) == nil {
			w.setPhase(p, podworkers.Terminated)
		}
	case w.c.Syncer.Finish(w.ctx, pod, kill.Termination) == nil:
		w.setPhase(p, podworkers.Finished)
		return false
	}
	return true
}

func (w *goWorkers) setPhase(p *goPod, phase podworkers.Phase) {
	w.mu.Lock()
	defer w.mu.Unlock()
	p.phase = phase
}

func (w *goWorkers) RequestKill(uid types.UID, k podworkers.KillOptions) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if p := w.pods[uid]; p != nil && p.kill == nil {
		p.kill = &k
	}
}

func (w *goWorkers) Kill(ctx context.Context, uid types.UID, k podworkers.KillOptions) error {
	w.RequestKill(uid, k)
	w.mu.Lock()
	p := w.pods[uid]
	w.mu.Unlock()
	if p == nil {
		return fmt.Errorf("pod %s: %w", uid, runtime.ErrNotFound)
	}
	select {
	case <-p.done:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (w *goWorkers) Drain(ctx context.Context, k podworkers.KillOptions) error {
	w.mu.Lock()
	uids := make([]types.UID, 0, len(w.pods))
	for uid := range w.pods {
		uids = append(uids, uid)
	}
	w.mu.Unlock()
	for _, uid := range uids {
		if err := w.Kill(ctx, uid, k); err != nil {
			return err
		}
	}
	return nil
}

func (w *goWorkers) State(uid types.UID) (podworkers.State, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	p := w.pods[uid]
	if p == nil {
		return podworkers.State{}, false
	}
	return podworkers.State{UID: uid, Phase: p.phase, Idle: p.phase == podworkers.Finished}, true
}

func (w *goWorkers) IsKnown(uid types.UID) bool { _, ok := w.State(uid); return ok }

func (w *goWorkers) IsFinished(uid types.UID) bool { st, _ := w.State(uid); return st.Idle }

func (w *goWorkers) ShouldPodContentBeRemoved(uid types.UID) bool {
	known := w.IsKnown(uid)
	w.mu.Lock()
	defer w.mu.Unlock()
	return !known && w.complete
}

func (w *goWorkers) ForgetFinished(uid types.UID, desired bool) bool {
	if w.IsFinished(uid) && !desired {
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.pods, uid)
	}
	return false
}

func (w *goWorkers) SyncKnownPods(desired map[types.UID]struct{}, complete bool) []types.UID {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.complete = w.complete || complete
	for uid, p := range w.pods {
		if _, ok := desired[uid]; !ok && p.phase == podworkers.Finished {
			delete(w.pods, uid)
		}
	}
	return nil
}

func (w *goWorkers) NotifyFinished() <-chan struct{} { return w.notify }

func (w *goWorkers) DrainFinished() []types.UID {
	w.mu.Lock()
	defer w.mu.Unlock()
	finished := w.finished
	w.finished = nil
	return finished
}

func (w *goWorkers) RequestRecreation(types.UID) bool            { return false }
func (w *goWorkers) Requeue(types.UID, podworkers.RequeueReason) {} // the next tick is soon
func (w *goWorkers) PauseRequeues(bool)                          {}
func (w *goWorkers) OverduePods(time.Duration) int               { return 0 }

func Example_podWorkersOwn() {
	runPod(agent.WithPodWorkers(newGoWorkers))
	// Output:
	// the pod runs
	// the pod is gone
}
