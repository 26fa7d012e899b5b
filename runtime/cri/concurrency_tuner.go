package cri

import "time"

// concurrencyTuner finds the number of starts at a time that gives the best throughput, by
// trying more and fewer and keeping what is better. It is pure but for what it
// remembers; every time comes from the caller.
//
// Throughput is how many are under way by how long each takes. Only starts count
// that ended while others waited for their turn, since else the limit was not
// the number under way, and that began under the limit of the time.
//
// Where starts take long, and not because they slow each other down, the time is spent
// waiting and not working: then the limit is doubled round by round as long as that helps.
//
// A tuner begins with few at a time, so that the first pods are early. With many in the
// queue this weighs little, and a few more keep the processors from waiting for the disk.
type concurrencyTuner struct {
	limit, max int
	initial    int

	epoch int           // grows with each change of limit
	count int           // starts in the window
	sum   time.Duration // of how long they took

	alone time.Duration // how long the last start took that was alone; 0: not known

	slowStarting bool    // the limit is being doubled
	best         int     // the best limit so far, around which trials go
	bestRate     float64 // starts a second at home, smoothed; 0: not known yet
	step         int     // where the next trial goes: +1 or -1
	cooldown     int     // windows to stay at home before the next trial
	nextCooldown int     // what cooldown becomes after a trial that was of no use
}

const (
	// windowFactor times the limit is how many starts a window has.
	windowFactor = 4
	// minWindow keeps windows of small limits from being too short.
	minWindow = 12
	// minGain is how much of the proportional gain more at a time must bring:
	// equal throughput with fewer at once finishes the first pods earlier.
	minGain = 0.3
	// maxLoss is how much of the proportional loss fewer at a time may cost.
	maxLoss = 0.1
	// drift is the change of throughput at home from which on old trials no
	// longer count: the machine has something else to do, or is free again.
	drift = 0.25
	// maxCooldown bounds the windows between two trials.
	maxCooldown = 16
	// rateWeight is the weight of what was known before against a new window.
	rateWeight = 0.5
	// slowStart is how long starts take, in seconds, where doubling is tried.
	slowStart = 0.5
	// maxStretch is how much longer than one alone starts may take where doubling is tried.
	maxStretch = 1.4
	// minDoublingGain is how much better twice as many at a time must be.
	minDoublingGain = 1.4
	// longQueue times the initial limit is from how many waiting starts on it is raised.
	longQueue = 10
)

func newTuner(initial, most int) concurrencyTuner {
	initial = min(max(initial, 1), most)
	return concurrencyTuner{limit: initial, initial: initial, best: initial, max: most, step: 1, nextCooldown: 1, slowStarting: true}
}

// pause begins a new window.
func (u *concurrencyTuner) pause() { u.count, u.sum = 0, 0 }

// newEpoch has starts that have begun before tell nothing.
func (u *concurrencyTuner) newEpoch() {
	u.epoch++
	u.pause()
}

// done takes a finished start: how long it took, in which epoch it was begun,
// and how many wait for their turn.
func (u *concurrencyTuner) done(took time.Duration, epoch, waiting int) {
	if waiting == 0 || epoch != u.epoch || took <= 0 {
		return
	}
	u.count++
	u.sum += took
	if u.count < u.window() {
		return
	}
	limit, slowStarting := u.limit, u.slowStarting
	u.learn(float64(limit) * float64(u.count) / u.sum.Seconds())
	if slowStarting && !u.slowStarting && u.limit == u.initial && waiting > longQueue*u.initial {
		u.raise()
	}
	u.pause()
	if u.limit != limit {
		u.epoch++
	}
}

func (u *concurrencyTuner) window() int {
	if u.slowStarting {
		return max(u.limit/2, 2)
	}
	return max(u.limit*windowFactor, minWindow)
}

// learn takes the throughput of a window at the present limit and chooses the
// next limit.
func (u *concurrencyTuner) learn(rate float64) {
	switch {
	case u.slowStarting:
		u.double(rate)
	case u.limit == u.best:
		u.updateBest(rate)
	case u.better(rate):
		// Go on in that direction.
		u.best, u.bestRate, u.nextCooldown = u.limit, rate, 1
		u.limit = u.neighbour()
	default:
		u.limit, u.step = u.best, -u.step
		u.cooldown, u.nextCooldown = u.nextCooldown, min(2*u.nextCooldown, maxCooldown)
	}
}

// double goes on doubling the limit where starts take long, while it helps.
func (u *concurrencyTuner) double(rate float64) {
	if u.limit != u.best && rate < u.bestRate*minDoublingGain {
		u.slowStarting, u.limit = false, u.best
		return
	}
	u.best, u.bestRate = u.limit, rate
	took := float64(u.limit) / rate
	if took < slowStart || u.alone > 0 && took > maxStretch*u.alone.Seconds() || u.limit == u.max {
		u.slowStarting = false
		return
	}
	u.limit = min(2*u.limit, u.max)
}

// raise makes home what suits a long queue.
func (u *concurrencyTuner) raise() {
	u.limit = min(u.initial+max(1, 2*u.initial/3), u.max)
	u.best, u.bestRate = u.limit, 0
}

// better reports whether rate makes the limit that is tried a better home.
func (u *concurrencyTuner) better(rate float64) bool {
	change := float64(u.limit-u.best) / float64(u.best)
	if change > 0 {
		return rate >= u.bestRate*(1+minGain*change)
	}
	return rate >= u.bestRate*(1+maxLoss*change)
}

func (u *concurrencyTuner) updateBest(rate float64) {
	if u.bestRate > 0 {
		if rate < u.bestRate*(1-drift) || rate > u.bestRate*(1+drift) {
			u.cooldown, u.nextCooldown = 0, 1
			u.slowStarting = rate < u.bestRate
		}
		rate = rateWeight*u.bestRate + (1-rateWeight)*rate
	}
	u.bestRate = rate
	if u.cooldown > 0 {
		u.cooldown--
		return
	}
	if !u.slowStarting {
		u.limit = u.neighbour()
	}
}

// neighbour is the next limit to try beside home, or home at both ends. Trials
// are further away where one more or fewer would hardly be noticed.
func (u *concurrencyTuner) neighbour() int {
	far := max(1, u.best/8)
	for range 2 {
		if n := u.best + u.step*far; n >= 1 && n <= u.max {
			return n
		}
		u.step = -u.step
	}
	return u.best
}
