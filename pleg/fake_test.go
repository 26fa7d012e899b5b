package pleg

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/podcache"
	"github.com/sublet-dev/agent/runtime"
)

// fakeRuntime is a runtime in memory. What it answers can be made to take time, fail,
// hang and contradict itself.
type fakeRuntime struct {
	mu       sync.Mutex
	pods     map[types.UID]runtime.Pod
	streams  map[chan types.UID]bool
	lists    int
	looks    map[types.UID]int
	watches  int
	now, max int // inspections under way

	listTakes time.Duration
	takes     func(types.UID) time.Duration // of an inspection
	fails     func(types.UID) error
	listErr   error
	watchErr  error // nil: the stream stays open
	listed    func([]runtime.Pod) []runtime.Pod
}

func newWorld() *fakeRuntime {
	return &fakeRuntime{
		pods: map[types.UID]runtime.Pod{}, looks: map[types.UID]int{},
		streams: map[chan types.UID]bool{},
	}
}

// hang is longer than any call may take.
const hang = 24 * time.Hour

func wait(ctx context.Context, d time.Duration) error {
	if d == 0 {
		return ctx.Err()
	}
	return sleepUntil(ctx, time.Now().Add(d))
}

func (w *fakeRuntime) Pods(ctx context.Context) ([]runtime.Pod, error) {
	w.mu.Lock()
	w.lists++
	pods := slices.Collect(maps.Values(w.pods))
	if w.listed != nil {
		pods = w.listed(pods)
	}
	takes, err := w.listTakes, w.listErr
	w.mu.Unlock()
	return pods, errors.Join(wait(ctx, takes), err)
}

func (w *fakeRuntime) Pod(ctx context.Context, uid types.UID) (runtime.Pod, error) {
	w.mu.Lock()
	w.looks[uid]++
	w.now++
	w.max = max(w.max, w.now)
	p := w.pods[uid]
	var takes time.Duration
	var err error
	if w.takes != nil {
		takes = w.takes(uid)
	}
	if w.fails != nil {
		err = w.fails(uid)
	}
	w.mu.Unlock()
	defer func() {
		w.mu.Lock()
		w.now--
		w.mu.Unlock()
	}()
	if err := errors.Join(wait(ctx, takes), err); err != nil {
		return runtime.Pod{}, err
	}
	return p, nil
}

func (w *fakeRuntime) Watch(ctx context.Context, hint func(types.UID)) error {
	w.mu.Lock()
	w.watches++
	err := w.watchErr
	ch := make(chan types.UID, 1000)
	w.streams[ch] = true
	w.mu.Unlock()
	defer func() {
		w.mu.Lock()
		delete(w.streams, ch)
		w.mu.Unlock()
	}()
	if err != nil {
		return err
	}
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case uid, ok := <-ch:
			if !ok {
				return errors.New("stream broke")
			}
			hint(uid)
		}
	}
}

// set changes a pod, and tells the event stream if asked to.
func (w *fakeRuntime) set(p runtime.Pod, tell bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if empty(&p) {
		delete(w.pods, p.UID)
	} else {
		w.pods[p.UID] = p
	}
	if tell {
		w.tell(p.UID)
	}
}

// tell sends a hint to the open streams. The caller holds mu.
func (w *fakeRuntime) tell(uid types.UID) {
	for ch := range w.streams {
		select {
		case ch <- uid:
		default:
		}
	}
}

func (w *fakeRuntime) with(f func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f()
}

func (w *fakeRuntime) looked(uid types.UID) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.looks[uid]
}

func (w *fakeRuntime) total() (lists, looks, watches int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, n := range w.looks {
		looks += n
	}
	return w.lists, looks, w.watches
}

// pod makes a pod with one sandbox and containers in the given states.
func pod(uid types.UID, states ...runtime.ContainerState) runtime.Pod {
	p := runtime.Pod{UID: uid, Sandboxes: []runtime.Sandbox{{ID: "s-" + string(uid), State: runtime.SandboxReady}}}
	for i, s := range states {
		name := string(rune('a' + i))
		p.Containers = append(p.Containers, runtime.Container{ID: name + "-" + string(uid), Name: name, State: s})
	}
	return p
}

// testEnv is a Generator that runs on a world in a bubble.
type testEnv struct {
	*Generator
	w     *fakeRuntime
	cache *podcache.Cache
	t     *testing.T
}

// inBubble runs f beside a Generator's Run, and checks that both end.
func inBubble(t *testing.T, w *fakeRuntime, cfg Config, f func(*testEnv)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		cache := new(podcache.Cache)
		cfg.Runtime, cfg.Cache = w, cache
		g, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- g.Run(ctx) }()
		f(&testEnv{g, w, cache, t})
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// after lets d pass and everything settle.
func (b *testEnv) after(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// kinds returns the kinds of what is drained.
func (b *testEnv) kinds() []EventType {
	var ks []EventType
	for _, e := range b.Drain() {
		ks = append(ks, e.Type)
	}
	return ks
}
