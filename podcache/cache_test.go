package podcache

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/runtime"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func view(name string) runtime.Pod { return runtime.Pod{UID: "u", Name: name} }

// PL-7: what counts as newer, pod by pod.
func TestNewerThan(t *testing.T) {
	t0 := time.Unix(1000, 0)
	boom := errors.New("boom")
	for _, tt := range []struct {
		name string
		set  func(*Cache)
		at   time.Time
		want string // name of the view; "" when the wait must not end
		err  error
	}{
		{"nothing known", func(*Cache) {}, time.Time{}, "", nil},
		{"anything will do", func(c *Cache) { c.Set("u", view("a"), nil, t0) }, time.Time{}, "a", nil},
		{"observed after", func(c *Cache) { c.Set("u", view("a"), nil, t0) }, t0.Add(-1), "a", nil},
		{"observed at that very time may have missed it", func(c *Cache) { c.Set("u", view("a"), nil, t0) }, t0, "", nil},
		{"observed before", func(c *Cache) { c.Set("u", view("a"), nil, t0) }, t0.Add(1), "", nil},
		{"another pod's freshness does not count", func(c *Cache) {
			c.Set("u", view("a"), nil, t0)
			c.Set("v", view("b"), nil, t0.Add(time.Hour))
		}, t0, "", nil},
		{"a failed inspection is told beside the last good view", func(c *Cache) {
			c.Set("u", view("a"), nil, t0)
			c.Set("u", runtime.Pod{}, boom, t0.Add(time.Second))
		}, t0, "a", boom},
		{"an older result never replaces a newer one", func(c *Cache) {
			c.Set("u", view("new"), nil, t0.Add(time.Second))
			c.Set("u", view("old"), nil, t0)
		}, t0, "new", nil},
		{"a deleted pod is not known", func(c *Cache) {
			c.Set("u", view("a"), nil, t0)
			c.Delete("u")
		}, time.Time{}, "", nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var c Cache
				tt.set(&c)
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				got, err := c.GetNewerThan(ctx, "u", tt.at)
				if tt.want == "" {
					require.ErrorIs(t, err, context.DeadlineExceeded)
					assert.Empty(t, c.waiters)
					return
				}
				require.ErrorIs(t, err, tt.err)
				assert.Equal(t, tt.want, got.Name)
			})
		})
	}
}

// PL-7: the view that ends a wait is handed over even if it is gone at once.
func TestWaiterGetsTheViewThatWokeIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c Cache
		t0 := time.Now()
		var wg sync.WaitGroup
		for i := range 3 {
			wg.Go(func() {
				p, err := c.GetNewerThan(t.Context(), "u", t0.Add(time.Duration(i)*time.Second))
				assert.NoError(t, err)
				assert.Equal(t, fmt.Sprint(i), p.Name)
			})
		}
		synctest.Wait()
		for i := range 3 {
			c.Set("u", view(fmt.Sprint(i)), nil, t0.Add(time.Duration(i)*time.Second+1))
			c.Delete("u")
		}
		wg.Wait()
		assert.Empty(t, c.waiters)
		assert.Empty(t, c.entries)
	})
}

func TestWaitEndsWithItsOwnCause(t *testing.T) {
	var c Cache
	why := errors.New("turn cancelled")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(why)
	p, err := c.GetNewerThan(ctx, "u", time.Time{})
	require.ErrorIs(t, err, why)
	assert.Zero(t, p)
	assert.Empty(t, c.waiters)
}

// TestHistories runs random writes and waits against a list of all writes.
func TestHistories(t *testing.T) {
	for seed := range uint64(100) {
		synctest.Test(t, func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(seed, 1))
			var c Cache
			var wg sync.WaitGroup
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			newest := map[types.UID]time.Time{}
			for range 50 {
				uid := types.UID(fmt.Sprint(rnd.IntN(3)))
				at := time.Now().Add(time.Duration(rnd.IntN(40)-20) * time.Second)
				switch rnd.IntN(4) {
				case 0:
					c.Delete(uid)
				case 1:
					wg.Go(func() {
						p, err := c.GetNewerThan(ctx, uid, at)
						if err != nil {
							assert.ErrorIs(t, err, context.Canceled, "seed %d", seed)
							return
						}
						assert.Equal(t, uid, p.UID, "seed %d", seed)
						assert.True(t, p.ObservedAt.After(at), "seed %d: %v is not after %v", seed, p.ObservedAt, at)
					})
				default:
					if _, known := c.Entry(uid); !known || at.After(newest[uid]) {
						newest[uid] = at
					}
					c.Set(uid, runtime.Pod{UID: uid, ObservedAt: at}, nil, at)
				}
				synctest.Wait()
				for _, uid := range c.PodUIDs() {
					p, ok := c.Get(uid)
					assert.True(t, ok)
					assert.Equal(t, newest[uid], p.ObservedAt, "seed %d", seed)
				}
				for uid, waiting := range c.waiters {
					for _, w := range waiting {
						assert.False(t, c.entries[uid] != nil && c.entries[uid].InspectedAt.After(w.at), "seed %d: %s waits for what is there", seed, uid)
					}
				}
				time.Sleep(time.Duration(rnd.IntN(5)) * time.Second)
			}
			cancel()
			wg.Wait()
			assert.Empty(t, c.waiters, "seed %d", seed)
		})
	}
}

func TestPodsAndUIDs(t *testing.T) {
	var c Cache
	assert.Empty(t, c.PodUIDs())
	c.Set("a", runtime.Pod{UID: "a"}, nil, time.Unix(1, 0))
	c.Set("b", runtime.Pod{}, errors.New("boom"), time.Unix(1, 0))
	assert.ElementsMatch(t, []types.UID{"a", "b"}, c.PodUIDs())
	assert.ElementsMatch(t, []runtime.Pod{{UID: "a"}, {UID: "b"}}, c.Pods())
	_, ok := c.Get("c")
	assert.False(t, ok)
}

func ExampleCache() {
	var c Cache
	go c.Set("uid-1", runtime.Pod{UID: "uid-1", Name: "web"}, nil, time.Now())
	p, err := c.GetNewerThan(context.Background(), "uid-1", time.Time{})
	fmt.Println(p.Name, err)
	// Output: web <nil>
}

// One write wakes its own pod's waiters and costs the same however many pods
// there are and wait.
func BenchmarkSet(b *testing.B) {
	for _, n := range []int{100, 1000, 10000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			var c Cache
			ctx, cancel := context.WithCancel(b.Context())
			var wg sync.WaitGroup
			uids := make([]types.UID, n)
			for i := range uids {
				uids[i] = types.UID(fmt.Sprint(i))
				c.Set(uids[i], runtime.Pod{UID: uids[i]}, nil, time.Unix(1, 0))
				wg.Go(func() { _, _ = c.GetNewerThan(ctx, uids[i], time.Now().Add(time.Hour)) })
			}
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				c.Set(uids[i%n], runtime.Pod{UID: uids[i%n]}, nil, time.Unix(int64(2+i), 0))
				i++
			}
			cancel()
			wg.Wait()
		})
	}
}
