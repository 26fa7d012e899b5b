package pleg

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/runtime"
)

// seeds is the number of random sequences; PLEG_SEEDS overrides it.
func seeds() uint64 {
	if n, err := strconv.ParseUint(os.Getenv("PLEG_SEEDS"), 10, 64); err == nil {
		return n
	}
	return 100
}

// mutatePod changes p as a runtime might between two inspections: containers are
// created, exit, are removed or restarted, or the sandbox is replaced.
func mutatePod(rnd *rand.Rand, p runtime.Pod, serial *int) runtime.Pod {
	next := runtime.Pod{UID: p.UID}
	next.Sandboxes = append(next.Sandboxes, p.Sandboxes...)
	next.Containers = append(next.Containers, p.Containers...)
	for range 1 + rnd.IntN(3) {
		*serial++
		n := len(next.Containers)
		switch rnd.IntN(7) {
		case 0, 1:
			c := runtime.Container{
				ID: fmt.Sprint("c", *serial), Name: fmt.Sprint("n", rnd.IntN(3)),
				Attempt: uint32(*serial), State: runtime.ContainerState(1 + rnd.IntN(3)),
			}
			next.Containers = append([]runtime.Container{c}, next.Containers...)
		case 2, 3, 4:
			if n > 0 {
				c := &next.Containers[rnd.IntN(n)]
				c.State = min(c.State+1, runtime.Exited)
			}
		case 5:
			if n > 0 {
				next.Containers = next.Containers[:n-1]
			}
		case 6:
			s := runtime.Sandbox{ID: fmt.Sprint("s", *serial), State: runtime.SandboxReady}
			next.Sandboxes = []runtime.Sandbox{s}
			if rnd.IntN(3) == 0 {
				next.Sandboxes, next.Containers = nil, nil
			}
		}
	}
	return next
}

// PL-1, PL-2, PL-3: runtime events are lost, repeated and invented, and calls are
// slow and fail. The emitted events add up to the cached states, each change
// exactly once. Soon after the runtime stops changing, the cache equals it.
func TestGenerator_RandomSequences(t *testing.T) {
	for seed := range seeds() {
		rt := newFakeRuntime()
		rnd := rand.New(rand.NewPCG(seed, 3))
		calls := rand.New(rand.NewPCG(seed, 4)) // guarded by rt.mu
		rt.inspectDelay = func(types.UID) time.Duration { return time.Duration(calls.IntN(2500)) * time.Millisecond }
		rt.inspectErr = func(types.UID) error {
			if calls.IntN(8) == 0 {
				return errors.New("inspection failed")
			}
			return nil
		}
		if seed%3 == 0 {
			rt.watchErr = runtime.ErrUnsupported
		}
		cfg := Config{MaxParallel: 1 + int(seed%4)}
		inBubble(t, rt, cfg, func(env *testEnv) {
			known := map[types.UID]eventReplay{}
			read := func() {
				for _, e := range env.Drain() {
					if known[e.UID] == nil {
						known[e.UID] = eventReplay{}
					}
					known[e.UID].apply(t, e)
				}
			}
			serial := 0
			for range 60 {
				uid := types.UID(strconv.Itoa(rnd.IntN(5)))
				rt.mu.Lock()
				p := rt.pods[uid]
				rt.mu.Unlock()
				p.UID = uid
				rt.set(mutatePod(rnd, p, &serial), rnd.IntN(3) > 0)
				other := types.UID(strconv.Itoa(rnd.IntN(6)))
				switch rnd.IntN(12) {
				case 0:
					rt.with(func() { rt.emit(other); rt.emit(other) })
				case 1:
					env.RequestInspection(other)
				case 2:
					env.SyncEnded(other, rnd.IntN(2) == 0)
				case 3:
					rt.with(func() {
						for ch := range rt.streams {
							close(ch)
							delete(rt.streams, ch)
						}
					})
				case 4:
					rt.with(func() { rt.listDelay = time.Duration(rnd.IntN(4)) * time.Second })
				case 5:
					at := time.Now().Add(-time.Duration(rnd.IntN(3)) * time.Second)
					if p, err := env.GetNewerThan(env.t.Context(), other, at); err == nil {
						assert.False(t, p.ObservedAt.Before(at), "seed %d", seed)
					}
				case 6:
					read()
				case 7, 8:
					if seed%2 == 0 {
						env.SyncStarted(other)
					}
				}
				env.after(time.Duration(rnd.IntN(3000)) * time.Millisecond)
			}
			rt.with(func() { rt.inspectDelay, rt.inspectErr, rt.listDelay = nil, nil, 0 })
			env.after(6 * time.Minute)
			read()
			rt.mu.Lock()
			defer rt.mu.Unlock()
			for i := range 6 {
				uid := types.UID(strconv.Itoa(i))
				cached, _ := env.cache.Get(uid)
				require.Equal(t, stateOf(rt.pods[uid]), stateOf(cached), "seed %d: cached state of %s differs from the runtime", seed, uid)
				if known[uid] == nil {
					known[uid] = eventReplay{}
				}
				require.Equal(t, stateOf(cached), known[uid], "seed %d: events of %s do not add up to the cached state", seed, uid)
			}
			assert.Empty(t, env.InspectionErrors(), "seed %d", seed)
			require.NoError(t, env.Healthy(), "seed %d", seed)
		})
	}
}

// PL-3: a reader that does not drain costs bounded memory per pod and gets events
// that lead to the current state later.
func TestDrain_BoundsBacklogOfSlowReader(t *testing.T) {
	rt := newFakeRuntime()
	inBubble(t, rt, Config{}, func(env *testEnv) {
		env.after(time.Minute)
		serial := 0
		p := newTestPod("u", runtime.Running)
		for range 1000 {
			serial++
			p.Containers = []runtime.Container{{
				ID: fmt.Sprint(serial), Name: "a", Attempt: uint32(serial), State: runtime.Running,
			}}
			rt.set(p, true)
			env.after(0)
		}
		events := env.Drain()
		assert.LessOrEqual(t, len(events), maxPending)
		known := eventReplay{}
		for _, e := range events {
			known.apply(t, e)
		}
		assert.Equal(t, stateOf(p), known)
		assert.Empty(t, env.Drain())
	})
}

// PL-3: a pod that changed back after more events than the backlog keeps still has
// an event.
func TestBacklog_EmitsPodSyncForPodThatChangedBack(t *testing.T) {
	var b backlog
	previous, current := newTestPod("u", runtime.Running), newTestPod("u", runtime.Running)
	b.add(previous, current, make([]Event, maxPending))
	b.add(previous, current, make([]Event, 1))
	pods := b.drain()
	require.Len(t, pods, 1)
	assert.Equal(t, []Event{{Type: PodSync, UID: "u"}}, pods[0].events)
	b.add(previous, current, make([]Event, maxPending))
	assert.Len(t, b.drain()[0].events, maxPending, "as many as are kept")
	assert.Empty(t, b.drain())
}
