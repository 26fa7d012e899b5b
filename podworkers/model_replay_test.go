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
	seeds     = flag.Int("seeds", 100, "how many random histories to run")
	firstSeed = flag.Uint64("seed", 0, "the first of them")
)

// subject is what a history is run on: the book alone, or workers that run.
type subject interface {
	update(u Update, gone bool)
	end(uid types.UID, k KillOptions)
	wake(uid types.UID, why RequeueReason)
	finish(uid types.UID, out runtime.SyncResult, err error) // the call under way
	advance(d time.Duration)
	sync(wanted map[types.UID]struct{}, full bool) []types.UID
	now() time.Time
	state(uid types.UID) (State, bool)
	begun() []begun // since the last call
	cancelled(uid types.UID) bool
	restart()
}

type begun struct {
	turn SyncCall
	at   time.Time
}

var errPanic = errors.New("panic, please")

// bookSubject runs the pure half: no goroutine, no clock.
type bookSubject struct {
	b      *tracker
	clock  time.Time
	starts []begun
	cancel map[types.UID]bool
	turns  map[types.UID]SyncCall
}

func newBookSubject() *bookSubject {
	s := &bookSubject{clock: time.Unix(1000, 0)}
	s.restart()
	return s
}

func (s *bookSubject) restart() {
	s.b = newBook(policy{resync: time.Minute, backOff: 10 * time.Second, jitter: func(d time.Duration) time.Duration { return d }})
	s.cancel, s.turns, s.starts = map[types.UID]bool{}, map[types.UID]SyncCall{}, nil
}

func (s *bookSubject) pump(effects []effect) {
	for _, e := range effects {
		if e.cancel != nil {
			s.cancel[e.uid] = true
		}
	}
	for _, uid := range slices.Sorted(maps.Keys(s.b.pods)) {
		if t, ok := s.b.start(uid); ok {
			s.starts, s.turns[uid] = append(s.starts, begun{t, s.clock}), t
			delete(s.cancel, uid)
		}
	}
}

func (s *bookSubject) update(u Update, gone bool) { s.pump(s.b.update(u, gone, s.clock)) }

func (s *bookSubject) end(uid types.UID, k KillOptions) {
	if l := s.b.pods[uid]; l != nil {
		s.pump(s.b.startNextStaticPod(l.kill(k, s.clock)))
	}
}

func (s *bookSubject) wake(uid types.UID, why RequeueReason) { s.pump(s.b.requeue(uid, why, s.clock)) }

func (s *bookSubject) finish(uid types.UID, out runtime.SyncResult, err error) {
	s.pump(s.b.end(s.turns[uid], out, err, s.clock))
}

func (s *bookSubject) advance(d time.Duration) {
	until := s.clock.Add(d)
	for {
		var first *podState
		for _, uid := range slices.Sorted(maps.Keys(s.b.pods)) {
			if l := s.b.pods[uid]; !l.requeueAt.IsZero() && !l.requeueAt.After(until) && (first == nil || l.requeueAt.Before(first.requeueAt)) {
				first = l
			}
		}
		if first == nil {
			s.clock = until
			return
		}
		s.clock = first.requeueAt
		s.pump(s.b.requeue(first.uid, RequeueDue, s.clock))
	}
}

func (s *bookSubject) sync(wanted map[types.UID]struct{}, full bool) []types.UID {
	return s.b.sync(wanted, full, s.clock)
}

func (s *bookSubject) now() time.Time { return s.clock }

func (s *bookSubject) state(uid types.UID) (State, bool) {
	if l := s.b.pods[uid]; l != nil {
		return l.state(), true
	}
	return State{}, false
}

func (s *bookSubject) begun() []begun {
	b := s.starts
	s.starts = nil
	return b
}

func (s *bookSubject) cancelled(uid types.UID) bool { return s.cancel[uid] }

// realSubject runs Workers in a bubble. Calls of its Syncer last until they are told
// how to end.
type realSubject struct {
	*Workers
	stop     func()
	stopping chan struct{} // calls under way end when it is closed
	mu       sync.Mutex
	starts   []begun
	calls    map[types.UID]call
	gone     bool
}

type call struct {
	ctx context.Context
	ret chan result
}

type result struct {
	out runtime.SyncResult
	err error
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
	s.calls, s.starts = map[types.UID]call{}, nil
	var err error
	s.Workers, err = New(Config{
		Syncer: s, Inspector: s, Jitter: 1e-12, IsStopped: func(types.UID) bool { return s.gone },
		Hooks: Hooks{SyncStarted: func(t SyncCall) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.starts = append(s.starts, begun{t, time.Now()})
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
	c := call{ctx, make(chan result)}
	s.mu.Lock()
	if _, ok := s.calls[uid]; ok {
		s.mu.Unlock()
		panic("PW-2: two calls for " + string(uid))
	}
	s.calls[uid] = c
	s.mu.Unlock()
	var r result
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
	return r.out, r.err
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

func (s *realSubject) update(u Update, gone bool) {
	s.gone = gone // only Update asks for it, in this goroutine
	s.Update(u)
	synctest.Wait()
}

func (s *realSubject) end(uid types.UID, k KillOptions) {
	s.RequestKill(uid, k)
	synctest.Wait()
}

func (s *realSubject) wake(uid types.UID, why RequeueReason) {
	s.Requeue(uid, why)
	synctest.Wait()
}

func (s *realSubject) finish(uid types.UID, out runtime.SyncResult, err error) {
	s.mu.Lock()
	c := s.calls[uid]
	s.mu.Unlock()
	c.ret <- result{out, err}
	synctest.Wait()
}

func (s *realSubject) advance(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func (s *realSubject) sync(wanted map[types.UID]struct{}, full bool) []types.UID {
	return s.SyncKnownPods(wanted, full)
}

func (s *realSubject) now() time.Time                    { return time.Now() }
func (s *realSubject) state(uid types.UID) (State, bool) { return s.State(uid) }

func (s *realSubject) cancelled(uid types.UID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls[uid].ctx.Err() != nil
}

func (s *realSubject) begun() []begun {
	s.mu.Lock()
	defer s.mu.Unlock()
	b := s.starts
	s.starts = nil
	return b
}
