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

	from  time.Time // begin of the window; zero: none runs
	count int       // starts in the window

	home     int     // the best limit so far, around which trials go
	homeRate float64 // starts a second at home, smoothed; 0: not known yet
	step     int     // where the next trial goes: +1 or -1
	rest     int     // windows to stay at home before the next trial
	patience int     // what rest becomes after a trial that was of no use
}

const (
	// roundsAWindow times the limit is how many starts a window has.
	roundsAWindow = 4
	// leastAWindow keeps windows of small limits from being too short.
	leastAWindow = 12
	// worthIt is how much of the proportional gain more at a time must bring:
	// equal throughput with fewer at once finishes the first pods earlier.
	worthIt = 0.3
	// forgiven is how much of the proportional loss fewer at a time may cost.
	forgiven = 0.1
	// drift is the change of throughput at home from which on old trials no
	// longer count: the machine has something else to do, or is free again.
	drift = 0.25
	// mostRest bounds the windows between two trials.
	mostRest = 16
	// memory is the weight of what was known before against a new window.
	memory = 0.5
)

func newTuner(initial, most int) tuner {
	initial = min(max(initial, 1), most)
	return tuner{limit: initial, home: initial, most: most, step: 1, patience: 1}
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
	switch {
	case u.limit == u.home:
		u.atHome(rate)
	case u.better(rate):
		// Better: go on in that direction.
		u.home, u.homeRate, u.patience = u.limit, rate, 1
		u.limit = u.neighbour()
	default:
		u.limit, u.step = u.home, -u.step
		u.rest, u.patience = u.patience, min(2*u.patience, mostRest)
	}
}

// better reports whether rate makes the limit that is tried a better home.
func (u *tuner) better(rate float64) bool {
	change := float64(u.limit-u.home) / float64(u.home)
	if change > 0 {
		return rate >= u.homeRate*(1+worthIt*change)
	}
	return rate >= u.homeRate*(1+forgiven*change)
}

func (u *tuner) atHome(rate float64) {
	if u.homeRate > 0 {
		if rate < u.homeRate*(1-drift) || rate > u.homeRate*(1+drift) {
			u.rest, u.patience = 0, 1
		}
		rate = memory*u.homeRate + (1-memory)*rate
	}
	u.homeRate = rate
	if u.rest > 0 {
		u.rest--
		return
	}
	u.limit = u.neighbour()
}

// neighbour is the next limit to try beside home, or home at both ends. Trials
// are further away where one more or fewer would hardly be noticed.
func (u *tuner) neighbour() int {
	far := max(1, u.home/8)
	for range 2 {
		if n := u.home + u.step*far; n >= 1 && n <= u.most {
			return n
		}
		u.step = -u.step
	}
	return u.home
}
