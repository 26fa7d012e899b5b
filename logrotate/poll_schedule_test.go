//go:build linux

package logrotate

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"golang.org/x/sys/unix"
)

// A log that cannot be read is tried at doubling intervals.
func TestPollSchedule_Retry(t *testing.T) {
	var p pollSchedule
	now := time.Now()
	for _, want := range []time.Duration{1, 2, 4, 5, 5} {
		p.retry(now, time.Second, 5*time.Second)
		assert.Equal(t, now.Add(want*time.Second), p.due)
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
