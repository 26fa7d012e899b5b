package syncloop

import "time"

// housekeepingSchedule decides when housekeeping comes next: at multiples of its period from
// the start on, so that what happens together is handled together, and rarely while there is
// no reason for it, so that an idle node does not wake up.
type housekeepingSchedule struct {
	start, last  time.Time // last: when it came last, at first start
	period, idle time.Duration
}

func newHousekeepingSchedule(start time.Time, period, idle time.Duration) housekeepingSchedule {
	return housekeepingSchedule{start: start, last: start, period: period, idle: idle}
}

func (s *housekeepingSchedule) ran(at time.Time) { s.last = at }

// next returns when housekeeping is due.
func (s *housekeepingSchedule) next(now, lastCleanupAt time.Time, needed bool) time.Time {
	from := s.last.Add(s.idle)
	switch {
	case needed:
		from = now
	case !lastCleanupAt.IsZero():
		from = lastCleanupAt.Add(s.idle)
	}
	if from.Before(s.last) {
		from = s.last
	}
	at := s.start.Add(from.Sub(s.start) / s.period * s.period)
	if at.Before(from) || !at.After(s.last) {
		return at.Add(s.period)
	}
	return at
}

// scheduleHousekeeping sets the timer of the next housekeeping. It is also what notices that
// the checks of the runtime have stopped.
func (r *runner) scheduleHousekeeping(now time.Time) {
	needed := r.cleanupNeeded && r.cfg.Cleaner != nil || r.retryNeeded || !r.health.ready
	at := r.schedule.next(now, r.lastCleanupAt, needed)
	if r.cfg.RuntimeState != nil && r.health.ready {
		if expires := r.health.lastReadyAt.Add(r.cfg.RuntimeSyncThreshold + time.Millisecond); expires.Before(at) {
			at = expires
		}
	}
	r.housekeeping.Reset(at.Sub(now))
}
