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

// seeds is how many random histories to run; PLEG_SEEDS sets another number.
func seeds() uint64 {
	if n, err := strconv.ParseUint(os.Getenv("PLEG_SEEDS"), 10, 64); err == nil {
		return n
	}
	return 100
}

// step changes p as a runtime might between two looks: containers begin, end,
// go away, are restarted, or the sandbox is replaced.
func step(rnd *rand.Rand, p runtime.Pod, serial *int) runtime.Pod {
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

// PL-1, PL-2, PL-3: whatever the event stream swallows, repeats and makes up,
// however long calls take and however they fail, what a reader was told adds up
// to the store's views, each transition once; and soon after the world is at
// rest the views are the world's.
func TestHistories(t *testing.T) {
	for seed := range seeds() {
		w := newWorld()
		rnd := rand.New(rand.NewPCG(seed, 3))
		calls := rand.New(rand.NewPCG(seed, 4)) // guarded by w.mu
		w.takes = func(types.UID) time.Duration { return time.Duration(calls.IntN(2500)) * time.Millisecond }
		w.fails = func(types.UID) error {
			if calls.IntN(8) == 0 {
				return errors.New("fails now and then")
			}
			return nil
		}
		if seed%3 == 0 {
			w.watchErr = runtime.ErrUnsupported
		}
		cfg := Config{MaxParallel: 1 + int(seed%4)}
		if seed%2 == 0 {
			cfg.IsWorking = func(uid types.UID) bool { return time.Now().Second()%2 == int(uid[0])%2 }
		}
		inBubble(t, w, cfg, func(b *testEnv) {
			known := map[types.UID]eventReplay{}
			read := func() {
				for _, e := range b.Drain() {
					if known[e.UID] == nil {
						known[e.UID] = eventReplay{}
					}
					known[e.UID].apply(t, e)
				}
			}
			serial := 0
			for range 60 {
				uid := types.UID(strconv.Itoa(rnd.IntN(5)))
				w.mu.Lock()
				p := w.pods[uid]
				w.mu.Unlock()
				p.UID = uid
				w.set(step(rnd, p, &serial), rnd.IntN(3) > 0)
				other := types.UID(strconv.Itoa(rnd.IntN(6)))
				switch rnd.IntN(12) {
				case 0:
					w.with(func() { w.tell(other); w.tell(other) })
				case 1:
					b.RequestInspection(other)
				case 2:
					b.MarkIdle(other)
				case 3:
					w.with(func() {
						for ch := range w.streams {
							close(ch)
							delete(w.streams, ch)
						}
					})
				case 4:
					w.with(func() { w.listTakes = time.Duration(rnd.IntN(4)) * time.Second })
				case 5:
					at := time.Now().Add(-time.Duration(rnd.IntN(3)) * time.Second)
					if p, err := b.GetNewerThan(b.t.Context(), other, at); err == nil {
						assert.False(t, p.ObservedAt.Before(at), "seed %d", seed)
					}
				case 6:
					read()
				}
				b.after(time.Duration(rnd.IntN(3000)) * time.Millisecond)
			}
			w.with(func() { w.takes, w.fails, w.listTakes = nil, nil, 0 })
			b.after(6 * time.Minute)
			read()
			w.mu.Lock()
			defer w.mu.Unlock()
			for i := range 6 {
				uid := types.UID(strconv.Itoa(i))
				seen, _ := b.cache.Get(uid)
				require.Equal(t, know(w.pods[uid]), know(seen), "seed %d: the view of %s is not the world's", seed, uid)
				if known[uid] == nil {
					known[uid] = eventReplay{}
				}
				require.Equal(t, know(seen), known[uid], "seed %d: what was told of %s is not what was seen", seed, uid)
			}
			assert.Empty(t, b.InspectionErrors(), "seed %d", seed)
			require.NoError(t, b.Healthy(), "seed %d", seed)
		})
	}
}

// PL-3: a reader that is asleep costs a bounded amount for a pod, and is told
// what matters when it wakes up.
func TestSleepingReader(t *testing.T) {
	w := newWorld()
	inBubble(t, w, Config{}, func(b *testEnv) {
		b.after(time.Minute)
		serial := 0
		p := pod("u", runtime.Running)
		for range 1000 {
			serial++
			p.Containers = []runtime.Container{{
				ID: fmt.Sprint(serial), Name: "a", Attempt: uint32(serial), State: runtime.Running,
			}}
			w.set(p, true)
			b.after(0)
		}
		events := b.Drain()
		assert.LessOrEqual(t, len(events), maxPending)
		known := eventReplay{}
		for _, e := range events {
			known.apply(t, e)
		}
		assert.Equal(t, know(p), known)
		assert.Empty(t, b.Drain())
	})
}

// A pod that is again as the reader knows it, after more than could be kept, is
// still told of.
func TestBacklogThatCollapsesToNothing(t *testing.T) {
	var b backlog
	old, now := pod("u", runtime.Running), pod("u", runtime.Running)
	many := make([]Event, maxPending+1)
	b.add(old, now, many)
	assert.Equal(t, []Event{{Type: PodSync, UID: "u"}}, b.drain())
	assert.Empty(t, b.drain())
}
