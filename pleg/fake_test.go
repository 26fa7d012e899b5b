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

	"github.com/sublet-dev/agent/internal/sleep"
	"github.com/sublet-dev/agent/podcache"
	"github.com/sublet-dev/agent/runtime"
)

// fakeRuntime is a runtime in memory. Its answers can be delayed, fail, hang and
// contradict each other. Its mu guards all fields.
type fakeRuntime struct {
	mu        sync.Mutex
	pods      map[types.UID]runtime.Pod
	streams   map[chan types.UID]bool
	lists     int
	inspected map[types.UID]int // inspections of each pod
	watches   int
	now, max  int // concurrent inspections

	listDelay    time.Duration
	inspectDelay func(types.UID) time.Duration
	inspectErr   func(types.UID) error
	listErr      error
	watchErr     error // nil: the stream stays open
	listed       func([]runtime.Pod) []runtime.Pod
}

func newFakeRuntime() *fakeRuntime {
	return &fakeRuntime{
		pods: map[types.UID]runtime.Pod{}, inspected: map[types.UID]int{},
		streams: map[chan types.UID]bool{},
	}
}

// hang is a delay longer than every timeout.
const hang = 24 * time.Hour

func (rt *fakeRuntime) Pods(ctx context.Context) ([]runtime.Pod, error) {
	rt.mu.Lock()
	rt.lists++
	pods := slices.Collect(maps.Values(rt.pods))
	if rt.listed != nil {
		pods = rt.listed(pods)
	}
	delay, err := rt.listDelay, rt.listErr
	rt.mu.Unlock()
	return pods, errors.Join(sleep.For(ctx, delay), err)
}

func (rt *fakeRuntime) Pod(ctx context.Context, uid types.UID) (runtime.Pod, error) {
	rt.mu.Lock()
	rt.inspected[uid]++
	rt.now++
	rt.max = max(rt.max, rt.now)
	p := rt.pods[uid]
	var delay time.Duration
	var err error
	if rt.inspectDelay != nil {
		delay = rt.inspectDelay(uid)
	}
	if rt.inspectErr != nil {
		err = rt.inspectErr(uid)
	}
	rt.mu.Unlock()
	defer func() {
		rt.mu.Lock()
		rt.now--
		rt.mu.Unlock()
	}()
	if err := errors.Join(sleep.For(ctx, delay), err); err != nil {
		return runtime.Pod{}, err
	}
	return p, nil
}

func (rt *fakeRuntime) Watch(ctx context.Context, onEvent func(types.UID)) error {
	rt.mu.Lock()
	rt.watches++
	err := rt.watchErr
	ch := make(chan types.UID, 1000)
	rt.streams[ch] = true
	rt.mu.Unlock()
	defer func() {
		rt.mu.Lock()
		delete(rt.streams, ch)
		rt.mu.Unlock()
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
			onEvent(uid)
		}
	}
}

// set changes a pod and optionally emits a runtime event for it.
func (rt *fakeRuntime) set(p runtime.Pod, emitEvent bool) {
	rt.mu.Lock()
	defer rt.mu.Unlock()
	if p.IsEmpty() {
		delete(rt.pods, p.UID)
	} else {
		rt.pods[p.UID] = p
	}
	if emitEvent {
		rt.emit(p.UID)
	}
}

// emit sends a runtime event to the open streams. The caller holds mu.
func (rt *fakeRuntime) emit(uid types.UID) {
	for ch := range rt.streams {
		select {
		case ch <- uid:
		default:
		}
	}
}

func (rt *fakeRuntime) with(f func()) {
	rt.mu.Lock()
	defer rt.mu.Unlock()
	f()
}

func (rt *fakeRuntime) inspectionsOf(uid types.UID) int {
	rt.mu.Lock()
	defer rt.mu.Unlock()
	return rt.inspected[uid]
}

func (rt *fakeRuntime) total() (lists, inspections, watches int) {
	rt.mu.Lock()
	defer rt.mu.Unlock()
	for _, n := range rt.inspected {
		inspections += n
	}
	return rt.lists, inspections, rt.watches
}

// newTestPod returns a pod with one ready sandbox and containers in the given
// states.
func newTestPod(uid types.UID, states ...runtime.ContainerState) runtime.Pod {
	p := runtime.Pod{UID: uid, Sandboxes: []runtime.Sandbox{{ID: "s-" + string(uid), State: runtime.SandboxReady}}}
	for i, s := range states {
		name := string(rune('a' + i))
		p.Containers = append(p.Containers, runtime.Container{ID: name + "-" + string(uid), Name: name, State: s})
	}
	return p
}

// testEnv is a Generator that runs on a fake runtime in a bubble.
type testEnv struct {
	*Generator
	rt    *fakeRuntime
	cache *podcache.Cache
	t     *testing.T
}

// inBubble calls f while a Generator runs and checks that Run ends after it.
func inBubble(t *testing.T, rt *fakeRuntime, cfg Config, f func(*testEnv)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		cache := new(podcache.Cache)
		cfg.Runtime, cfg.Cache = rt, cache
		g, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- g.Run(ctx) }()
		f(&testEnv{g, rt, cache, t})
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// after lets d pass and waits until all goroutines are blocked.
func (env *testEnv) after(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// eventTypes drains the events and returns their types.
func (env *testEnv) eventTypes() []EventType {
	var eventTypes []EventType
	for _, e := range env.Drain() {
		eventTypes = append(eventTypes, e.Type)
	}
	return eventTypes
}
