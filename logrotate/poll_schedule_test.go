//go:build linux

package logrotate

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"golang.org/x/sys/unix"
)

// A log that cannot be read is tried at doubling intervals.
func TestPollSchedule_Retry(t *testing.T) {
	var p pollSchedule
	now := time.Now()
	for _, seconds := range []int{1, 2, 4, 5, 5} {
		p.retry(now, time.Second, 5*time.Second)
		assert.Equal(t, now.Add(time.Duration(seconds)*time.Second), p.due)
		assert.Equal(t, now, p.at)
		now = p.due
	}
	p.retry(now, time.Minute, time.Second)
	assert.Equal(t, now.Add(time.Minute), p.due, "the first interval is the minimum")
}

// A log that is rotated counts from zero, and is due after the wait.
func TestPollSchedule_Begin(t *testing.T) {
	now := time.Now()
	p := pollSchedule{size: 100, at: now, due: now}
	p.begin(time.Second)
	assert.Equal(t, pollSchedule{at: now, due: now.Add(time.Second)}, p)
}

func TestPollSchedule_PollNow(t *testing.T) {
	now := time.Now()
	p := pollSchedule{due: now.Add(time.Hour), wait: time.Hour}
	assert.False(t, p.isDue(now))
	p.pollNow()
	assert.True(t, p.isDue(now))
	p.retry(now, time.Second, time.Minute)
	assert.Equal(t, now.Add(time.Second), p.due, "the interval starts again")
	assert.True(t, p.isDue(now.Add(time.Second)))
	assert.False(t, p.isDue(now.Add(time.Second-1)))
}

func TestFreeBytes(t *testing.T) {
	assert.Zero(t, freeBytes("/no/such/directory"))
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=1m"); err != nil {
		t.Skip("needs root: ", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	assert.EqualValues(t, 1<<20, freeBytes(dir))
}

// CG-3: a log is rotated at its maximum size, not above it.
func TestRotator_RotatesAtMaxSize(t *testing.T) {
	c := newLogFiles(t, 2)
	l := newRotatorEnv(t, c, Config{MaxSize: 1000})
	c.write(t, 0, string(make([]byte, 1000-len("hello\n"))))
	c.write(t, 1, string(make([]byte, 999-len("hello\n"))))
	l.step()
	assert.Equal(t, []string{"0"}, c.reopened())
}

// When the disk loses free space, logs that exist are read before they are due.
func TestRotator_ReadsLogsWhenDiskIsLow(t *testing.T) {
	c := newLogFiles(t, 2)
	l := newRotatorEnv(t, c, Config{MaxSize: 1000})
	for _, lg := range l.logs {
		lg.due, lg.free = time.Now().Add(time.Hour), math.MaxUint64
	}
	missing := l.logs["ns_p1_u/app/0.log"]
	missing.missing = true
	l.step()
	assert.NotZero(t, l.logs["ns_p0_u/app/0.log"].at)
	assert.Zero(t, missing.at)
}
