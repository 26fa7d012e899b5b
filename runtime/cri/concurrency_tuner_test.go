package cri

import (
	"math"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
)

// A machine that digests some starts at a time best: its throughput at n. Below
// the knee it grows, above it falls off by the slope.
type machine struct{ knee, peak, slope, noise float64 }

func (m machine) rate(n int, r *rand.Rand) float64 {
	at := float64(n)
	rate := m.peak * min(at, m.knee) / m.knee
	if at > m.knee {
		rate *= math.Max(0.3, 1-m.slope*(at-m.knee)/m.knee)
	}
	return rate * (1 + m.noise*(2*r.Float64()-1))
}

// feed tells the tuner of one start on the machine.
func feed(u *concurrencyTuner, m machine, r *rand.Rand) {
	u.done(time.Duration(float64(u.limit)/m.rate(u.limit, r)*float64(time.Second)), u.epoch, 1)
}

// Wherever the knee is, the limit comes to where the throughput is at least 0.9
// of the best, and stays there most of the time.
func TestTheLimitFindsTheBestThroughput(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 1))
		m := machine{knee: float64(1 + r.IntN(24)), peak: 5 + 40*r.Float64(), slope: 0.1 + 0.9*r.Float64(), noise: 0.15}
		u := newTuner(4, 64)
		good, after := 0, 0
		for i := range 400 { // windows
			limit := u.limit
			for done := false; !done; {
				feed(&u, m, r)
				done = u.count == 0
			}
			if i < 200 {
				continue
			}
			after++
			quiet := machine{m.knee, m.peak, m.slope, 0}
			if quiet.rate(limit, r) >= 0.85*m.peak {
				good++
			}
		}
		assert.GreaterOrEqual(t, float64(good), 0.85*float64(after), "seed %d %+v limit %d home %d", seed, m, u.limit, u.best)
	}
}

// A runtime in which starts wait most of their time, for a slow network say,
// takes as many at once as there are: the limit gets there in few rounds.
func TestSlowStartsAreDoubled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(4, 64, time.Minute)
		var wg sync.WaitGroup
		began := time.Now()
		for range 60 {
			wg.Go(func() {
				s, err := l.acquire(t.Context(), 0)
				assert.NoError(t, err)
				time.Sleep(1500 * time.Millisecond)
				s.release(true)
			})
		}
		wg.Wait()
		// The first, and 4, 8, 16, 32: four rounds, and not the fifteen of four at a time.
		assert.Equal(t, firstAlone+6*time.Second, time.Since(began))
	})
}

// What starts took while the runtime was quick does not keep the limit low when it has become slow.
func TestSlowStartsAreDoubledAfterAQuickOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(4, 64, time.Minute)
		start := func(took time.Duration) {
			s, err := l.acquire(t.Context(), 0)
			assert.NoError(t, err)
			time.Sleep(took)
			s.release(true)
		}
		start(200 * time.Millisecond)
		began := time.Now()
		var wg sync.WaitGroup
		for range 200 {
			wg.Go(func() { start(3 * time.Second) })
		}
		wg.Wait()
		assert.Less(t, time.Since(began), 30*time.Second) // 150 s by fours
	})
}

// Starts that take long because the machine is busy are tried doubled once.
func TestDoublingEndsWhereItDoesNotHelp(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 7))
	m := machine{knee: 4, peak: 4, slope: 0.2, noise: 0.15}
	u := newTuner(4, 64)
	most := 0
	for range 500 {
		feed(&u, m, r)
		most = max(most, u.limit)
	}
	assert.Equal(t, 8, most)
	assert.InDelta(t, 4, u.best, 1)
}

// Starts that take longer than one alone slow each other down: more at a time is not even tried, as all of them would
// be late for nothing.
func TestStartsThatSlowEachOtherAreNotDoubled(t *testing.T) {
	const step = 10 * time.Millisecond // of a start's work
	for name, tc := range map[string]struct {
		alone      time.Duration // how long one start takes
		processors int           // that the starts share
		initial    int
		pods       int // no long queue but where the limit is to grow far
		atLeast    int // how many are under way at the same time, at most
		less       int
	}{
		"one processor for 300 ms":  {300 * time.Millisecond, 1, 5, 50, 5, 7},
		"two processors for 400 ms": {400 * time.Millisecond, 2, 3, 30, 3, 5},
		"600 ms of waiting":         {600 * time.Millisecond, math.MaxInt, 5, 200, 64, 65},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newLimiter(tc.initial, 64, time.Minute)
				var mu sync.Mutex
				running, counted, most := 0, 0, 0
				var wg sync.WaitGroup
				for range tc.pods {
					wg.Go(func() {
						s, err := l.acquire(t.Context(), 0)
						assert.NoError(t, err)
						mu.Lock()
						running++
						isLast := s.lease.epoch == noEpoch // of many, which are more at a time
						if !isLast {
							counted++
							most = max(most, counted)
						}
						for left := tc.alone; left > 0; {
							share := min(1, float64(tc.processors)/float64(running))
							mu.Unlock()
							time.Sleep(step)
							mu.Lock()
							left -= time.Duration(share * float64(step))
						}
						running--
						if !isLast {
							counted--
						}
						mu.Unlock()
						s.release(true)
					})
				}
				wg.Wait()
				assert.GreaterOrEqual(t, most, tc.atLeast)
				assert.Less(t, most, tc.less)
			})
		})
	}
}

// With few in the queue a tuner keeps to the initial limit, and with many it begins with two thirds more; once only, so
// that it keeps what it finds later.
func TestALongQueueRaisesTheLimit(t *testing.T) {
	for name, tc := range map[string]struct{ initial, most, waiting, want int }{
		"a few wait":            {3, 64, 30, 3},
		"many wait":             {3, 64, 31, 5},
		"one at a time":         {1, 64, 11, 2},
		"bounded":               {3, 4, 31, 4},
		"bounded by what it is": {3, 3, 31, 3},
	} {
		t.Run(name, func(t *testing.T) {
			u := newTuner(tc.initial, tc.most)
			took := func() time.Duration { return time.Duration(u.limit) * 100 * time.Millisecond } // equal throughput
			for range 2 {
				u.done(took(), u.epoch, tc.waiting)
			}
			assert.Equal(t, tc.want, u.limit)
			for range 5000 {
				u.done(took(), u.epoch, tc.waiting)
			}
			assert.LessOrEqual(t, u.best, tc.initial, "more at a time did not help")
		})
	}
}

// Equal throughput is had with few at a time: the first pods are up earlier.
func TestTheLimitDoesNotGrowForNothing(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	m := machine{knee: 3, peak: 20, slope: 0, noise: 0.15}
	u := newTuner(4, 64)
	for range 5000 {
		feed(&u, m, r)
	}
	assert.LessOrEqual(t, u.best, 4)
	assert.GreaterOrEqual(t, u.best, 3)
}

// What is not saturated tells nothing.
func TestIdleTimesDoNotMoveTheLimit(t *testing.T) {
	u := newTuner(4, 64)
	for range 1000 {
		u.done(time.Hour, 0, 0)
	}
	assert.Equal(t, 4, u.limit)
}
