package syncloop

import "time"

// housekeepingSchedule decides when housekeeping comes next: at multiples of its period from
// the start on, so that what happens together is handled together, and rarely while there is
// no reason for it, so that an idle node does not wake up.
type housekeepingSchedule struct {
	start, last  time.Time // last: when it came last, at first start
	due          time.Time // when it is needed, whatever else the loop does meanwhile; zero: it is not needed
	period, idle time.Duration
}

func newHousekeepingSchedule(start time.Time, period, idle time.Duration) housekeepingSchedule {
	return housekeepingSchedule{start: start, last: start, period: period, idle: idle}
}

func (s *housekeepingSchedule) ran(at time.Time) { s.last, s.due = at, time.Time{} }

// next returns when housekeeping is due, which is in the past if other inputs came first. It is
// due for a retry from retryAt on, unless that is zero.
func (s *housekeepingSchedule) next(now, lastCleanupAt, retryAt time.Time, needed bool) time.Time {
	if needed {
		if s.due.IsZero() {
			s.due = s.multiple(now)
		}
		return s.due
	}
	s.due = time.Time{}
	if lastCleanupAt.IsZero() {
		lastCleanupAt = s.last
	}
	at := lastCleanupAt.Add(s.idle)
	if !retryAt.IsZero() && retryAt.Before(at) {
		at = retryAt
	}
	return s.multiple(at)
}

// multiple returns the first multiple of the period from at on that comes after the last housekeeping.
func (s *housekeepingSchedule) multiple(at time.Time) time.Time {
	if at.Before(s.last) {
		at = s.last
	}
	multiple := at.Add(-(at.Sub(s.start) % s.period))
	if multiple.Before(at) || !multiple.After(s.last) {
		return multiple.Add(s.period)
	}
	return multiple
}

// scheduleHousekeeping sets the timer of the next housekeeping. It also keeps iterations coming,
// and notices that the checks of the runtime have stopped.
func (r *runner) scheduleHousekeeping(now time.Time) {
	needed := r.cleanupNeeded && r.cfg.Cleaner != nil || !r.health.ready
	at := r.schedule.next(now, r.lastCleanupAt, r.retryAt, needed)
	if latest := now.Add(maxIterationAge / 2); latest.Before(at) {
		at = latest
	}
	if r.cfg.RuntimeState != nil && r.health.ready {
		if expires := r.health.lastReadyAt.Add(r.cfg.RuntimeSyncThreshold + time.Millisecond); expires.Before(at) {
			at = expires
		}
	}
	r.housekeeping.Reset(at.Sub(now))
}
