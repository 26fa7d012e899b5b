package cri

import "time"

// tuner finds the number of starts at a time that gives the best throughput, by
// trying more and fewer and keeping what is better. It is pure but for what it
// remembers; every time comes from the caller.
//
// Throughput is how many are under way by how long each takes. Only starts count
// that ended while others waited for their turn, since else the limit was not
// the number under way, and that began under the limit of the time.
//
// Where starts take long, the time is most often spent waiting and not working:
// then the limit is doubled round by round as long as that helps.
type tuner struct {
	limit, most int

	epoch int           // grows with each change of limit
	count int           // starts in the window
	sum   time.Duration // of how long they took

	sprint   bool    // the limit is being doubled
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
	// slowStart is how long starts take, in seconds, where doubling is tried.
	slowStart = 0.5
	// doubleWorth is how much better twice as many at a time must be.
	doubleWorth = 1.4
)

func newTuner(initial, most int) tuner {
	initial = min(max(initial, 1), most)
	return tuner{limit: initial, home: initial, most: most, step: 1, patience: 1, sprint: true}
}

// pause begins a new window.
func (u *tuner) pause() { u.count, u.sum = 0, 0 }

// done tells of a finished start: how long it took, in which epoch it was begun,
// and whether others wait for their turn.
func (u *tuner) done(took time.Duration, epoch int, waiting bool) {
	if !waiting || epoch != u.epoch || took <= 0 {
		return
	}
	u.count++
	u.sum += took
	if u.count < u.window() {
		return
	}
	was := u.limit
	u.learn(float64(u.limit) * float64(u.count) / u.sum.Seconds())
	u.pause()
	if u.limit != was {
		u.epoch++
	}
}

func (u *tuner) window() int {
	if u.sprint {
		return max(u.limit/2, 2)
	}
	return max(u.limit*roundsAWindow, leastAWindow)
}

// learn takes the throughput of a window at the present limit and chooses the
// next limit.
func (u *tuner) learn(rate float64) {
	switch {
	case u.sprint:
		u.double(rate)
	case u.limit == u.home:
		u.atHome(rate)
	case u.better(rate):
		// Go on in that direction.
		u.home, u.homeRate, u.patience = u.limit, rate, 1
		u.limit = u.neighbour()
	default:
		u.limit, u.step = u.home, -u.step
		u.rest, u.patience = u.patience, min(2*u.patience, mostRest)
	}
}

// double goes on doubling the limit where starts take long, while it helps.
func (u *tuner) double(rate float64) {
	if u.limit != u.home && rate < u.homeRate*doubleWorth {
		u.sprint, u.limit = false, u.home
		return
	}
	u.home, u.homeRate = u.limit, rate
	if float64(u.limit)/rate < slowStart || u.limit == u.most {
		u.sprint = false
		return
	}
	u.limit = min(2*u.limit, u.most)
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
			u.sprint = rate < u.homeRate
		}
		rate = memory*u.homeRate + (1-memory)*rate
	}
	u.homeRate = rate
	if u.rest > 0 {
		u.rest--
		return
	}
	if !u.sprint {
		u.limit = u.neighbour()
	}
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
