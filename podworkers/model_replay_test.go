package podworkers

import (
	"context"
	"errors"
	"flag"
	"maps"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/runtime"
)

var (
	seeds     = flag.Int("seeds", 100, "number of random sequences")
	firstSeed = flag.Uint64("seed", 0, "seed of the first sequence")
)

// subject is what is compared with the model: a tracker or running Workers.
type subject interface {
	update(u Update, stopped bool)
	kill(uid types.UID, k KillOptions)
	requeue(uid types.UID, reason RequeueReason)
	finish(uid types.UID, result runtime.SyncResult, err error) // ends the call under way
	advance(d time.Duration)
	sync(desired map[types.UID]struct{}, complete bool) []types.UID
	now() time.Time
	state(uid types.UID) (State, bool)
	started() []startedCall // since the previous started
	cancelled(uid types.UID) bool
	restart()
}

type startedCall struct {
	call SyncCall
	at   time.Time
}

var errPanic = errors.New("cause a panic")

// trackerSubject runs a tracker without goroutines on a fake clock.
type trackerSubject struct {
	tracker *tracker
	clock   time.Time
	starts  []startedCall
	cancel  map[types.UID]bool
	calls   map[types.UID]SyncCall
}

func newTrackerSubject() *trackerSubject {
	s := &trackerSubject{clock: time.Unix(1000, 0)}
	s.restart()
	return s
}

func (s *trackerSubject) restart() {
	s.tracker = newTracker(policy{resyncPeriod: time.Minute, settledPeriod: 5 * time.Minute, backOff: 10 * time.Second, jitter: func(d time.Duration) time.Duration { return d }})
	s.cancel, s.calls, s.starts = map[types.UID]bool{}, map[types.UID]SyncCall{}, nil
}

func (s *trackerSubject) pump(effects []effect) {
	for _, e := range effects {
		if e.cancel != nil {
			s.cancel[e.uid] = true
		}
	}
	for _, uid := range slices.Sorted(maps.Keys(s.tracker.pods)) {
		if t, ok := s.tracker.start(uid); ok {
			s.starts, s.calls[uid] = append(s.starts, startedCall{t, s.clock}), t
			delete(s.cancel, uid)
		}
	}
}

func (s *trackerSubject) update(u Update, stopped bool) {
	s.pump(s.tracker.update(u, stopped, s.clock))
}

func (s *trackerSubject) kill(uid types.UID, k KillOptions) {
	if p := s.tracker.pods[uid]; p != nil {
		s.pump(s.tracker.startNextStaticPod(p.kill(k, s.clock)))
	}
}

func (s *trackerSubject) requeue(uid types.UID, reason RequeueReason) {
	s.pump(s.tracker.requeue(uid, reason, s.clock))
}

func (s *trackerSubject) finish(uid types.UID, result runtime.SyncResult, err error) {
	s.pump(s.tracker.complete(s.calls[uid], result, err, s.clock))
}

func (s *trackerSubject) advance(d time.Duration) {
	until := s.clock.Add(d)
	for {
		var first *podState
		for _, uid := range slices.Sorted(maps.Keys(s.tracker.pods)) {
			if p := s.tracker.pods[uid]; !p.requeueAt.IsZero() && !p.requeueAt.After(until) && (first == nil || p.requeueAt.Before(first.requeueAt)) {
				first = p
			}
		}
		if first == nil {
			s.clock = until
			return
		}
		s.clock = first.requeueAt
		s.pump(s.tracker.requeueDue(first.uid, s.clock))
	}
}

func (s *trackerSubject) sync(desired map[types.UID]struct{}, complete bool) []types.UID {
	return s.tracker.sync(desired, complete, s.clock)
}

func (s *trackerSubject) now() time.Time { return s.clock }

func (s *trackerSubject) state(uid types.UID) (State, bool) {
	if p := s.tracker.pods[uid]; p != nil {
		return p.state(), true
	}
	return State{}, false
}

func (s *trackerSubject) started() []startedCall {
	b := s.starts
	s.starts = nil
	return b
}

func (s *trackerSubject) cancelled(uid types.UID) bool { return s.cancel[uid] }

// realSubject runs Workers in a bubble. Calls of its Syncer last until finish is
// called.
type realSubject struct {
	*Workers
	stop     func()
	stopping chan struct{} // closed to end the calls under way
	mu       sync.Mutex
	starts   []startedCall
	calls    map[types.UID]pendingCall
	stopped  bool
}

type pendingCall struct {
	ctx context.Context
	ret chan callResult
}

type callResult struct {
	result runtime.SyncResult
	err    error
}

func newRealSubject(t *testing.T) *realSubject {
	s := &realSubject{}
	s.restart()
	t.Cleanup(func() { s.stop() })
	return s
}

func (s *realSubject) restart() {
	if s.stop != nil {
		s.stop()
	}
	s.calls, s.starts = map[types.UID]pendingCall{}, nil
	var err error
	s.Workers, err = New(Config{
		Syncer: s, Inspector: s, Jitter: 1e-12,
		Hooks: Hooks{SyncStarted: func(ctx context.Context, call SyncCall) context.Context {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.starts = append(s.starts, startedCall{call, time.Now()})
			return ctx
		}},
	})
	if err != nil {
		panic(err)
	}
	stopping := make(chan struct{})
	s.stopping = stopping
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); _ = s.Run(ctx) }()
	s.stop = func() { cancel(); close(stopping); <-done }
	synctest.Wait()
}

func (s *realSubject) call(ctx context.Context, uid types.UID) (runtime.SyncResult, error) {
	c := pendingCall{ctx, make(chan callResult)}
	s.mu.Lock()
	if _, ok := s.calls[uid]; ok {
		s.mu.Unlock()
		panic("PW-2: two calls for " + string(uid))
	}
	s.calls[uid] = c
	s.mu.Unlock()
	var r callResult
	select {
	case r = <-c.ret:
	case <-s.stopping:
		r.err = ErrStopped
	}
	s.mu.Lock()
	delete(s.calls, uid)
	s.mu.Unlock()
	if errors.Is(r.err, errPanic) {
		panic(r.err)
	}
	return r.result, r.err
}

func (s *realSubject) Sync(ctx context.Context, pod *corev1.Pod, _ runtime.Pod) (runtime.SyncResult, error) {
	return s.call(ctx, pod.UID)
}

func (s *realSubject) Terminate(ctx context.Context, pod *corev1.Pod, _ runtime.Pod, _ runtime.Termination) error {
	_, err := s.call(ctx, pod.UID)
	return err
}

func (s *realSubject) Finish(ctx context.Context, pod *corev1.Pod, _ runtime.Termination) error {
	_, err := s.call(ctx, pod.UID)
	return err
}

func (s *realSubject) GetNewerThan(_ context.Context, uid types.UID, _ time.Time) (runtime.Pod, error) {
	return runtime.Pod{UID: uid}, nil
}

func (s *realSubject) IsRunning(types.UID) bool { return !s.stopped }

func (s *realSubject) update(u Update, stopped bool) {
	s.stopped = stopped // only read by IsRunning, in this goroutine
	s.Update(u)
	synctest.Wait()
}

func (s *realSubject) kill(uid types.UID, k KillOptions) {
	s.RequestKill(uid, k)
	synctest.Wait()
}

func (s *realSubject) requeue(uid types.UID, reason RequeueReason) {
	s.Requeue(uid, reason)
	synctest.Wait()
}

func (s *realSubject) finish(uid types.UID, result runtime.SyncResult, err error) {
	s.mu.Lock()
	c := s.calls[uid]
	s.mu.Unlock()
	c.ret <- callResult{result, err}
	synctest.Wait()
}

func (s *realSubject) advance(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func (s *realSubject) sync(desired map[types.UID]struct{}, complete bool) []types.UID {
	return s.SyncKnownPods(desired, complete)
}

func (s *realSubject) now() time.Time                    { return time.Now() }
func (s *realSubject) state(uid types.UID) (State, bool) { return s.State(uid) }

func (s *realSubject) cancelled(uid types.UID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls[uid].ctx.Err() != nil
}

func (s *realSubject) started() []startedCall {
	s.mu.Lock()
	defer s.mu.Unlock()
	b := s.starts
	s.starts = nil
	return b
}
