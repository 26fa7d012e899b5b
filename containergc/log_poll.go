package containergc

import (
	"time"

	"golang.org/x/sys/unix"
)

// pollSchedule is how a log grows, and when it is to be looked at again.
type pollSchedule struct {
	size    int64
	at, due time.Time     // of the last look and the next
	wait    time.Duration // between the two
	room    uint64        // that the disk had at the last look; 0: not known
}

// bounds are what a pace keeps within.
type bounds struct {
	full           int64 // bytes that a log should not exceed
	watch, longest time.Duration
}

// seen takes the size of the log, and the room that the disk has, and sets when
// the next look is due. It reports that the log has not grown since the last.
//
// A log that grows is looked at when it has come half the way to being full at
// the speed that it has: it may speed up. The time to the next look may only
// double from one to the next, so that one good measurement among bad ones does
// not put it off for long.
func (p *pollSchedule) seen(size int64, now time.Time, room uint64, b bounds) (silent bool) {
	grown, since, first := size-p.size, now.Sub(p.at), p.at.IsZero()
	longest := min(max(2*p.wait, b.watch), max(b.longest, b.watch))
	p.wait = longest
	switch {
	case first:
		p.wait = b.watch
	case grown > 0:
		left := time.Duration(float64(since) * float64(b.full-size) / float64(grown) / 2)
		p.wait = min(max(left, minPollInterval), longest)
	default:
		silent = grown == 0
	}
	p.size, p.at, p.due, p.room = size, now, now.Add(p.wait), room
	return silent
}

// retry has a log looked at again that could not be measured, ever more rarely.
func (p *pollSchedule) retry(now time.Time, first, longest time.Duration) {
	p.wait = min(max(2*p.wait, first), max(longest, first))
	p.at, p.due = now, now.Add(p.wait)
}

// begin has a log that is being rotated looked at after wait. What it is then as
// long as, it has grown.
func (p *pollSchedule) begin(wait time.Duration) { p.size, p.due = 0, p.at.Add(wait) }

// pollNow has the log looked at now, and soon again after that.
func (p *pollSchedule) pollNow() { p.due, p.wait = time.Time{}, 0 }

func (p *pollSchedule) isDue(now time.Time) bool { return !p.due.After(now) }

// isDiskLow reports whether the disk has lost so much room since the last look
// that the log may have come half the way to being full.
func (p *pollSchedule) isDiskLow(full int64, room uint64) bool {
	return p.room > room && p.room-room >= uint64(max(full-p.size, 2))/2
}

// freeBytes is what the file system of dir has left, in bytes; 0 if that cannot be
// told.
func freeBytes(dir string) uint64 {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return 0
	}
	return st.Bfree * uint64(st.Bsize)
}
