package logrotate

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// logWatch watches idle logs by inotify, so that they need not be polled. Each log
// causes one event and is then polled until it is idle again, so that a log that is
// written continuously causes no further events. The methods of a nil logWatch do
// nothing.
//
// It is read without blocking, and has a goroutine only after notify.
type logWatch struct {
	fd   int
	logs map[int32]*logState                 // watched, by descriptor
	buf  [256 * unix.SizeofInotifyEvent]byte // a file's events have no names

	file  *os.File      // owns fd after notify
	await chan struct{} // a value has the goroutine wait for events; holds one at most
}

func newLogWatch() (*logWatch, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("watch logs by inotify: %w", err)
	}
	return &logWatch{fd: fd, logs: make(map[int32]*logState)}, nil
}

// close removes the watches and ends the goroutine.
func (w *logWatch) close() {
	switch {
	case w == nil:
	case w.file == nil:
		_ = unix.Close(w.fd)
	default:
		_ = w.file.Close()
		close(w.await)
	}
}

// notify returns a channel that has a value once there are events. After awaitNext it has
// another one for the events from then on. The goroutine for it is one of wg, until close. A
// nil channel means that events cannot be waited for.
func (w *logWatch) notify(wg *sync.WaitGroup) <-chan struct{} {
	if w == nil {
		return nil
	}
	file := os.NewFile(uintptr(w.fd), "inotify")
	w.file, w.await = file, make(chan struct{}, 1)
	conn, err := file.SyscallConn()
	if err != nil || file.SetReadDeadline(time.Time{}) != nil {
		return nil
	}
	events := make(chan struct{}, 1)
	wg.Go(func() {
		for range w.await {
			if conn.Read(hasEvents) != nil {
				return // closed
			}
			events <- struct{}{}
		}
	})
	w.awaitNext()
	return events
}

// awaitNext is called after the events were read that the channel of notify announced.
func (w *logWatch) awaitNext() { w.await <- struct{}{} }

func hasEvents(fd uintptr) bool {
	n, err := unix.IoctlGetInt(int(fd), unix.TIOCINQ)
	return err != nil || n > 0
}

// watch watches for one write, rename or removal of a log. It reports whether it is
// watched: the number of watches per user is limited.
func (w *logWatch) watch(path string, l *logState) bool {
	if w == nil {
		return false
	}
	const mask = unix.IN_MODIFY | unix.IN_ATTRIB | unix.IN_MOVE_SELF | unix.IN_DELETE_SELF
	descriptor, err := unix.InotifyAddWatch(w.fd, path, mask|unix.IN_ONESHOT|unix.IN_DONT_FOLLOW)
	if err != nil {
		return false
	}
	id := int32(descriptor) //nolint:gosec // descriptors are small
	if other := w.logs[id]; other != nil && other != l {
		return false // one file by two names
	}
	if l.watch != id {
		w.forget(l)
	}
	l.watch, w.logs[id] = id, l
	return true
}

// forget removes the watch of a log that is polled again.
func (w *logWatch) forget(l *logState) {
	if w == nil || l.watch == 0 {
		return
	}
	_, _ = unix.InotifyRmWatch(w.fd, uint32(l.watch)) //nolint:gosec // it came from the kernel; it may have ended
	delete(w.logs, l.watch)
	l.watch = 0
}

// drainEvents calls notify for each log with an event. It reports whether events were
// lost.
func (w *logWatch) drainEvents(notify func(*logState)) (missed bool) {
	if w == nil {
		return false
	}
	for {
		n, err := unix.Read(w.fd, w.buf[:])
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if n <= 0 { // also if err is set
			return missed
		}
		for rest := w.buf[:n]; len(rest) >= unix.SizeofInotifyEvent; {
			id := int32(binary.NativeEndian.Uint32(rest)) //nolint:gosec // the kernel's own type
			missed = missed || binary.NativeEndian.Uint32(rest[4:])&unix.IN_Q_OVERFLOW != 0
			name := binary.NativeEndian.Uint32(rest[12:])
			rest = rest[min(len(rest), unix.SizeofInotifyEvent+int(name)):]
			if l := w.logs[id]; l != nil {
				delete(w.logs, id)
				l.watch = 0
				notify(l)
			}
		}
	}
}
