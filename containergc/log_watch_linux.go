package containergc

import (
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// logWatch has the kernel tell of silent logs that are written to again, so that
// they need not be looked at. Each log rings once and is then looked at until it
// is silent again, so that one that is written to all the time rings no more.
// The methods of a nil bell do nothing.
//
// It is asked, and never waited for: no goroutine hangs on it.
type logWatch struct {
	fd   int
	logs map[int32]*logState                 // asleep
	buf  [256 * unix.SizeofInotifyEvent]byte // a file's events have no names
}

func newBell() (*logWatch, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("watch logs by inotify: %w", err)
	}
	return &logWatch{fd: fd, logs: make(map[int32]*logState)}, nil
}

func (b *logWatch) close() {
	if b != nil {
		_ = unix.Close(b.fd) // the watches go with it
	}
}

// watch has a log ring once when it is written to, renamed or removed. It reports
// whether it will: a user may have so many watches only.
func (b *logWatch) watch(path string, l *logState) bool {
	if b == nil {
		return false
	}
	const what = unix.IN_MODIFY | unix.IN_ATTRIB | unix.IN_MOVE_SELF | unix.IN_DELETE_SELF
	w, err := unix.InotifyAddWatch(b.fd, path, what|unix.IN_ONESHOT|unix.IN_DONT_FOLLOW)
	if err != nil {
		return false
	}
	id := int32(w) //nolint:gosec // descriptors are small
	if other := b.logs[id]; other != nil && other != l {
		return false // one file by two names
	}
	if l.watch != id {
		b.forget(l)
	}
	l.watch, b.logs[id] = id, l
	return true
}

// forget ends the watch of a log that is not asleep any more.
func (b *logWatch) forget(l *logState) {
	if b == nil || l.watch == 0 {
		return
	}
	_, _ = unix.InotifyRmWatch(b.fd, uint32(l.watch)) //nolint:gosec // it came from the kernel; it may have ended
	delete(b.logs, l.watch)
	l.watch = 0
}

// drainEvents hands on the logs that have rung. It reports that some that rang were not
// told of.
func (b *logWatch) drainEvents(rang func(*logState)) (missed bool) {
	for b != nil {
		n, err := unix.Read(b.fd, b.buf[:])
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || n <= 0 {
			return missed
		}
		for rest := b.buf[:n]; len(rest) >= unix.SizeofInotifyEvent; {
			id := int32(binary.NativeEndian.Uint32(rest)) //nolint:gosec // the kernel's own type
			missed = missed || binary.NativeEndian.Uint32(rest[4:])&unix.IN_Q_OVERFLOW != 0
			name := binary.NativeEndian.Uint32(rest[12:])
			rest = rest[min(len(rest), unix.SizeofInotifyEvent+int(name)):]
			if l := b.logs[id]; l != nil {
				delete(b.logs, id)
				l.watch = 0
				rang(l)
			}
		}
	}
	return missed
}
