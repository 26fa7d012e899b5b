package cri

import (
	"context"
	"maps"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestSlotsAreGivenInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(2, 2, time.Minute)
		var mu sync.Mutex
		var order []int
		var wg sync.WaitGroup
		for i := range 6 {
			wg.Go(func() {
				s, err := l.acquire(t.Context(), 0)
				assert.NoError(t, err)
				mu.Lock()
				order = append(order, i)
				mu.Unlock()
				time.Sleep(time.Second)
				s.release(true)
				s.release(true) // once is enough
			})
			synctest.Wait()
		}
		wg.Wait()
		for i := range 3 { // two at a time
			assert.ElementsMatch(t, []int{2 * i, 2*i + 1}, order[2*i:2*i+2])
		}
		assert.Zero(t, l.inUse)
	})
}

// The first start after a pause has the machine for itself, but not for long.
func TestTheFirstStartIsAlone(t *testing.T) {
	for name, took := range map[string]time.Duration{"until it ends": 200 * time.Millisecond, "for half a second": time.Hour} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newLimiter(3, 3, 2*time.Hour)
				others := time.Minute
				if took < firstAlone { // none hangs
					others = time.Second
				}
				for range 2 { // after each pause
					began := time.Now()
					var mu sync.Mutex
					var given []time.Duration
					var wg sync.WaitGroup
					for i := range 4 {
						wg.Go(func() {
							s, err := l.acquire(t.Context(), 0)
							assert.NoError(t, err)
							mu.Lock()
							given = append(given, time.Since(began))
							mu.Unlock()
							if i == 0 {
								time.Sleep(took)
							} else {
								time.Sleep(others)
							}
							s.release(false)
						})
						synctest.Wait()
					}
					wg.Wait()
					alone, last := min(took, firstAlone), min(took, firstAlone)
					if took > firstAlone { // the first has one of the three slots until that is lent
						last = initialSlotTimeout
					}
					assert.Equal(t, []time.Duration{0, alone, alone, last}, given)
				}
			})
		})
	}
}

// With the first one start a third of those that may at a time.
func TestFewStartBesideTheFirst(t *testing.T) {
	for name, tc := range map[string]struct{ initial, want int }{
		"two processors":  {3, 1},
		"four processors": {6, 2},
		"one at a time":   {1, 1},
		"two at a time":   {2, 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newLimiter(tc.initial, 64, time.Minute)
				slots := make(chan slot, 10)
				for range cap(slots) {
					go func() {
						s, err := l.acquire(t.Context(), 0)
						assert.NoError(t, err)
						slots <- s
					}()
				}
				synctest.Wait()
				assert.Len(t, slots, tc.want)
				first := <-slots
				first.release(true)
				synctest.Wait()
				assert.Len(t, slots, tc.initial)
				for range cap(slots) - 1 {
					s := <-slots
					s.release(true)
					synctest.Wait()
				}
				assert.Zero(t, l.inUse)
			})
		})
	}
}

// The last of many starts are twice as many at a time. The tuner does not learn from them.
func TestTheLastOfManyStartTogether(t *testing.T) {
	for name, tc := range map[string]struct{ pods, most, want int }{
		"many":    {30, 64, 6},
		"bounded": {30, 5, 5},
		"few":     {18, 64, 3},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newLimiter(3, tc.most, time.Minute)
				start := func(took time.Duration) (others int) {
					s, err := l.acquire(t.Context(), 0)
					assert.NoError(t, err)
					time.Sleep(took)
					l.mu.Lock()
					others = l.inUse
					l.mu.Unlock()
					s.release(true)
					return others
				}
				var mu sync.Mutex
				together := map[int]int{}
				var wg sync.WaitGroup
				for range tc.pods {
					wg.Go(func() {
						n := start(100 * time.Millisecond)
						mu.Lock()
						together[n]++
						mu.Unlock()
					})
				}
				wg.Wait()
				most := slices.Max(slices.Collect(maps.Keys(together)))
				assert.Equal(t, tc.want, most, "%v", together)
				assert.False(t, l.drains)
				assert.Equal(t, 3, l.tuner.best)
			})
		})
	}
}

// One that no longer waits is no start that is left.
func TestCancelledStartsAreNotWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(1, 64, time.Hour)
		s, err := l.acquire(t.Context(), 0)
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		var started sync.Map
		for i := range 10 {
			within := ctx
			if i > 7 {
				within = t.Context()
			}
			go func() {
				if s, err := l.acquire(within, 0); err == nil {
					started.Store(i, true)
					s.release(true)
				}
			}()
		}
		time.Sleep(firstAlone)
		synctest.Wait()
		cancel()
		synctest.Wait()
		count := 0
		started.Range(func(any, any) bool { count++; return true })
		assert.Equal(t, 2, count, "beside the one that has not ended")
		s.release(true)
	})
}

// A pod that gave its slot back to wait for something goes before pods that
// came after it.
func TestATicketKeepsItsPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(1, 1, time.Minute)
		first, err := l.acquire(t.Context(), 0)
		require.NoError(t, err)
		first.release(false)
		holder, err := l.acquire(t.Context(), 0)
		require.NoError(t, err)
		var order []string
		var wg sync.WaitGroup
		for _, w := range []struct {
			name   string
			ticket uint64
		}{{"young", 0}, {"old", first.ticket}} {
			wg.Go(func() {
				s, err := l.acquire(t.Context(), w.ticket)
				assert.NoError(t, err)
				order = append(order, w.name)
				s.release(false)
			})
			synctest.Wait()
		}
		holder.release(false)
		wg.Wait()
		assert.Equal(t, []string{"old", "young"}, order)
	})
}

// PL-8 for starts: a call that hangs delays no other, for not much longer than
// starts take.
func TestASlotThatHangsIsLent(t *testing.T) {
	const alone = -1 // times the duration of a start that was alone
	for name, tc := range map[string]struct {
		before      []time.Duration // how long starts took that ended
		slotTimeout time.Duration
		want        time.Duration
	}{
		"nothing is known":               {nil, 10 * time.Second, 2 * time.Second},
		"nothing is known, less allowed": {nil, time.Second, time.Second},
		"quick starts":                   {[]time.Duration{10 * time.Millisecond}, 10 * time.Second, time.Second},
		"starts take half a second":      {[]time.Duration{time.Second / 2, time.Second / 2}, 10 * time.Second, 2 * time.Second},
		"slow starts":                    {[]time.Duration{9 * time.Second}, 10 * time.Second, 10 * time.Second},
		"starts become slow":             {[]time.Duration{time.Second, 2 * time.Second}, 10 * time.Second, 5 * time.Second},
		"one is slow by chance":          {[]time.Duration{time.Second, 2 * time.Second, time.Second}, 10 * time.Second, 4750 * time.Millisecond},
		"a quick one alone":              {[]time.Duration{alone * 300 * time.Millisecond}, 10 * time.Second, 2 * time.Second},
		"a quick one alone, later":       {[]time.Duration{time.Second, alone * 300 * time.Millisecond}, 10 * time.Second, 4 * time.Second},
		"a slow one alone":               {[]time.Duration{alone * time.Second}, 10 * time.Second, 4 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newLimiter(1, 1, tc.slotTimeout)
				for _, took := range tc.before {
					s, err := l.acquire(t.Context(), 0)
					require.NoError(t, err)
					if took > 0 {
						s.lease.epoch = l.tuner.epoch
					}
					time.Sleep(took.Abs()) // lent meanwhile, or not: it tells how long starts take
					s.release(true)
				}
				hung, err := l.acquire(t.Context(), 0)
				require.NoError(t, err)
				began := time.Now()
				next, err := l.acquire(t.Context(), 0)
				require.NoError(t, err)
				assert.Equal(t, tc.want, time.Since(began))
				hung.release(true) // late: the slot is another's
				assert.Equal(t, 1, l.inUse)
				next.release(true)
				assert.Zero(t, l.inUse)
			})
		})
	}
}

// PL-8: where a start has hung lately, none is alone, since it could be the same one.
func TestNoStartIsAloneAfterOneThatHung(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(2, 2, time.Second)
		start := func() slot {
			s, err := l.acquire(t.Context(), 0)
			require.NoError(t, err)
			return s
		}
		both := func() time.Duration {
			began := time.Now()
			first, second := start(), start()
			took := time.Since(began)
			first.release(false)
			second.release(false)
			return took
		}
		assert.Equal(t, firstAlone, both())
		hung := start()
		time.Sleep(time.Minute)
		hung.release(false)
		assert.Zero(t, both())
		time.Sleep(hangMemory)
		assert.Equal(t, firstAlone, both())
	})
}

func TestAcquireEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(1, 1, time.Hour)
		existing, err := l.acquire(t.Context(), 0)
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err = l.acquire(ctx, 0)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		assert.Zero(t, l.waiting.Len())
		existing.release(false)
		assert.Zero(t, l.inUse)
	})
}

func BenchmarkLimiter(b *testing.B) {
	l := newLimiter(4, 64, time.Minute)
	b.ReportAllocs()
	for b.Loop() {
		s, err := l.acquire(b.Context(), 0)
		if err != nil {
			b.Fatal(err)
		}
		s.release(true)
	}
}
