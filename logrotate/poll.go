package logrotate

import (
	"time"

	"github.com/sublet-dev/agent/internal/diskusage"
)

// pollSchedule is the growth of a log and when its size is due to be read.
type pollSchedule struct {
	size    int64
	at, due time.Time     // of the last read and the next
	wait    time.Duration // between the two
	free    uint64        // free bytes of the disk at the last read; 0: unknown
}

// bounds are the limits of a pollSchedule.
type bounds struct {
	full           int64 // size at which a log is rotated
	watch, longest time.Duration
}

// update records the size of the log and the free space of the disk, and schedules the
// next read. idle reports that the log has not grown since the last one.
//
// A log that grows is read when it has grown halfway to its maximum size at the current
// rate, because the rate may increase. The interval at most doubles, so that one
// measurement at a low rate does not delay the next for long.
func (p *pollSchedule) update(size int64, now time.Time, free uint64, b bounds) (idle bool) {
	grown, since, first := size-p.size, now.Sub(p.at), p.at.IsZero()
	longest := min(max(2*p.wait, b.watch), max(b.longest, b.watch))
	p.wait = longest
	switch {
	case first: // nothing to compare with: longest is b.watch
	case grown > 0:
		left := time.Duration(float64(since) * float64(b.full-size) / float64(grown) / 2)
		p.wait = min(max(left, minPollInterval), longest)
	default:
		idle = grown == 0
	}
	p.size, p.at, p.due, p.free = size, now, now.Add(p.wait), free
	return idle
}

// retry schedules a log whose size could not be read, with a growing interval.
func (p *pollSchedule) retry(now time.Time, first, longest time.Duration) {
	p.wait = min(max(2*p.wait, first), max(longest, first))
	p.at, p.due = now, now.Add(p.wait)
}

// begin schedules a log that is being rotated. Its size counts from zero.
func (p *pollSchedule) begin(wait time.Duration) { p.size, p.due = 0, p.at.Add(wait) }

// pollNow makes the log due now, and again soon after that.
func (p *pollSchedule) pollNow() { p.due, p.wait = time.Time{}, 0 }

func (p *pollSchedule) isDue(now time.Time) bool { return !p.due.After(now) }

// isDiskLow reports whether the disk has lost so much free space since the last read
// that the log may have grown halfway to its maximum size.
func (p *pollSchedule) isDiskLow(full int64, free uint64) bool {
	return p.free > free && p.free-free >= uint64(max(full-p.size, 2))/2
}

// freeBytes returns the free space of the file system of dir, or 0 if it is unknown.
func freeBytes(dir string) uint64 {
	u, err := diskusage.FileSystem(dir)
	if err != nil {
		return 0
	}
	return u.CapacityBytes - u.UsedBytes
}
