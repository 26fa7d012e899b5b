package cri

import "time"

// tuner finds the number of starts at a time that gives the best throughput, by
// trying one more and one fewer and keeping what is better. It is pure but for
// what it remembers; every time comes from the caller.
//
// Only windows in which somebody waited the whole time count: else the number
// that was allowed was not the one that worked. A window is a few rounds of the
// limit, so that the noise of single starts evens out.
type tuner struct {
	limit, most int

	rate  map[int]float64 // starts a second seen at each limit, smoothed
	from  time.Time       // begin of the window; zero: none runs
	count int             // starts in the window
	step  int             // where the next trial goes: +1 or -1
	home  int             // the best limit so far, around which trials go
}

const (
	// roundsAWindow times the limit is how many starts a window has.
	roundsAWindow = 4
	// leastAWindow keeps windows of small limits from being too short.
	leastAWindow = 12
	// worthIt is how much better one more at a time must be: equal throughput
	// with fewer at once finishes the first pods earlier.
	worthIt = 1.05
	// stillAsGood is how little one fewer at a time may cost.
	stillAsGood = 0.98
	// memory is the weight of what was known before against a new window.
	memory = 0.5
)

func newTuner(initial, most int) tuner {
	initial = min(max(initial, 1), most)
	return tuner{limit: initial, home: initial, most: most, step: 1, rate: make(map[int]float64)}
}

// pause ends the window without counting it.
func (u *tuner) pause() { u.from, u.count = time.Time{}, 0 }

// done tells of a finished start, and whether others wait for their turn.
func (u *tuner) done(now time.Time, waiting bool) {
	if !waiting {
		u.pause()
		return
	}
	if u.from.IsZero() {
		u.from, u.count = now, 0
		return
	}
	u.count++
	took := now.Sub(u.from)
	if u.count < max(u.limit*roundsAWindow, leastAWindow) || took <= 0 {
		return
	}
	u.learn(float64(u.count) / took.Seconds())
	// What is under way was begun under the old limit: the next window begins
	// with the next start that ends.
	u.pause()
}

// learn takes the throughput of a window at the present limit and chooses the
// next limit.
func (u *tuner) learn(rate float64) {
	if known, ok := u.rate[u.limit]; ok {
		rate = memory*known + (1-memory)*rate
	}
	u.rate[u.limit] = rate
	switch {
	case u.limit == u.home:
		u.limit = u.neighbour()
		return
	case u.limit > u.home && rate > u.rate[u.home]*worthIt,
		u.limit < u.home && rate >= u.rate[u.home]*stillAsGood:
		u.home = u.limit // better: go on in that direction
		u.limit = u.neighbour()
		return
	}
	u.limit = u.home
	u.step = -u.step
}

// neighbour is the next limit to try beside home, or home at both ends.
func (u *tuner) neighbour() int {
	if n := u.home + u.step; n >= 1 && n <= u.most {
		return n
	}
	u.step = -u.step
	if n := u.home + u.step; n >= 1 && n <= u.most {
		return n
	}
	return u.home
}
