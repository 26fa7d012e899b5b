package logrotate

import (
	"context"
	"encoding/binary"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func newTestWatch(t *testing.T) *logWatch {
	w, err := newLogWatch()
	require.NoError(t, err)
	t.Cleanup(w.close)
	return w
}

func drain(w *logWatch) (logs []*logState, missed bool) {
	missed = w.drainEvents(func(l *logState) { logs = append(logs, l) })
	return logs, missed
}

// Each of write, change of attributes, rename and removal is one event, the first of which
// ends the watch.
func TestLogWatch_ReportsOneEvent(t *testing.T) {
	for name, change := range map[string]func(path string) error{
		"write":    func(path string) error { return os.WriteFile(path, []byte("x"), 0o600) },
		"truncate": func(path string) error { return os.Truncate(path, 0) },
		"rename":   func(path string) error { return os.Rename(path, path+".1") },
		"remove":   os.Remove,
	} {
		t.Run(name, func(t *testing.T) {
			w := newTestWatch(t)
			path := filepath.Join(t.TempDir(), "log")
			require.NoError(t, os.WriteFile(path, []byte("y"), 0o600))
			l := new(logState)
			require.True(t, w.watch(path, l))
			assert.NotZero(t, l.watch)
			logs, missed := drain(w)
			assert.Empty(t, logs)
			assert.False(t, missed)

			require.NoError(t, change(path))
			logs, missed = drain(w)
			assert.Equal(t, []*logState{l}, logs)
			assert.False(t, missed)
			assert.Zero(t, l.watch)
			assert.Empty(t, w.logs)
			_ = os.WriteFile(path, []byte("z"), 0o600)
			logs, _ = drain(w)
			assert.Empty(t, logs)
		})
	}
}

// A log is watched once, a forgotten one is not watched, and a name that is given to
// another file moves the watch.
func TestLogWatch_Forget(t *testing.T) {
	w := newTestWatch(t)
	dir := t.TempDir()
	path, other := filepath.Join(dir, "log"), filepath.Join(dir, "other")
	for _, p := range []string{path, other} {
		require.NoError(t, os.WriteFile(p, nil, 0o600))
	}
	l := new(logState)
	require.True(t, w.watch(path, l))
	require.True(t, w.watch(path, l), "again")
	assert.Len(t, w.logs, 1)
	require.False(t, w.watch(path, new(logState)), "another log is the same file")
	require.True(t, w.watch(other, l))
	assert.Len(t, w.logs, 1)
	require.NoError(t, os.WriteFile(path, []byte("x"), 0o600))
	logs, _ := drain(w)
	assert.Empty(t, logs, "the first file is not watched any more")

	w.forget(l)
	assert.Zero(t, l.watch)
	assert.Empty(t, w.logs)
	w.forget(l)
	require.NoError(t, os.WriteFile(other, []byte("x"), 0o600))
	logs, _ = drain(w)
	assert.Empty(t, logs)
	assert.Empty(t, watches(t, w), "the kernel has none either")
}

// watches returns the kernel's list of watches.
func watches(t *testing.T, w *logWatch) (lines []string) {
	t.Helper()
	info, err := os.ReadFile(filepath.Join("/proc/self/fdinfo", strconv.Itoa(w.fd)))
	require.NoError(t, err)
	for line := range strings.SplitSeq(string(info), "\n") {
		if strings.HasPrefix(line, "inotify") {
			lines = append(lines, line)
		}
	}
	return lines
}

// What cannot be watched is polled: a missing file, a link, and everything without
// inotify.
func TestLogWatch_CannotWatch(t *testing.T) {
	w := newTestWatch(t)
	dir := t.TempDir()
	assert.False(t, w.watch(filepath.Join(dir, "none"), new(logState)))
	require.NoError(t, os.Symlink("/etc/hostname", filepath.Join(dir, "link")))
	l := new(logState)
	if w.watch(filepath.Join(dir, "link"), l) { // the link itself, not its target
		require.NoError(t, os.Remove(filepath.Join(dir, "link")))
		logs, _ := drain(w)
		assert.Equal(t, []*logState{l}, logs)
	}
	var none *logWatch
	assert.False(t, none.watch(dir, new(logState)))
	none.forget(&logState{watch: 7})
	none.close()
	_, missed := drain(none)
	assert.False(t, missed)
}

// More events than fit into the buffer are read at once, and names in events are skipped.
func TestLogWatch_ReadsAllEvents(t *testing.T) {
	var fds [2]int
	require.NoError(t, unix.Pipe2(fds[:], unix.O_CLOEXEC|unix.O_NONBLOCK))
	w := &logWatch{fd: fds[0], logs: make(map[int32]*logState)}
	t.Cleanup(w.close)
	send := func(descriptor int32, mask uint32, name string) {
		event := make([]byte, unix.SizeofInotifyEvent, unix.SizeofInotifyEvent+len(name))
		binary.NativeEndian.PutUint32(event, uint32(descriptor))
		binary.NativeEndian.PutUint32(event[4:], mask)
		binary.NativeEndian.PutUint32(event[12:], uint32(len(name)))
		_, err := unix.Write(fds[1], append(event, name...))
		require.NoError(t, err)
	}
	for i := range int32(600) {
		w.logs[i+1] = &logState{watch: i + 1}
		send(i+1, unix.IN_MODIFY, "")
	}
	logs, missed := drain(w)
	assert.Len(t, logs, 600)
	assert.False(t, missed)

	l := &logState{watch: 7}
	w.logs[7] = l
	send(5, unix.IN_IGNORED, "")
	send(6, unix.IN_MODIFY, "sixteen bytes...")
	send(7, unix.IN_MODIFY, "")
	logs, missed = drain(w)
	assert.Equal(t, []*logState{l}, logs)
	assert.False(t, missed)

	send(-1, unix.IN_Q_OVERFLOW, "")
	send(5, unix.IN_IGNORED, "")
	logs, missed = drain(w)
	assert.Empty(t, logs)
	assert.True(t, missed, "events were lost")

	send(7, unix.IN_MODIFY, "")
	require.NoError(t, unix.Close(fds[1]))
	logs, missed = drain(w)
	assert.Empty(t, logs, "it was not watched any more")
	assert.False(t, missed)
}

// Without inotify there is an error, and logs are polled.
func TestNewLogWatch_ReturnsErrors(t *testing.T) {
	var limit unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &limit))
	none := limit
	none.Cur = 0
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &none))
	w, err := newLogWatch()
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &limit))
	require.ErrorIs(t, err, unix.EMFILE)
	require.ErrorContains(t, err, "watch logs by inotify")
	assert.Nil(t, w)
}

// CG-3: after lost events, all logs are read.
func TestRotator_ReadsAllLogsAfterLostEvents(t *testing.T) {
	c := newLogFiles(t, 3)
	l := newRotatorEnv(t, c, Config{MaxSize: 1000, SizePollInterval: 1})
	l.settle()
	l.logWatch.close()
	var fds [2]int
	require.NoError(t, unix.Pipe2(fds[:], unix.O_CLOEXEC|unix.O_NONBLOCK))
	t.Cleanup(func() { _ = unix.Close(fds[1]) })
	l.logWatch.fd = fds[0]
	event := make([]byte, unix.SizeofInotifyEvent)
	binary.NativeEndian.PutUint32(event[4:], unix.IN_Q_OVERFLOW)
	_, err := unix.Write(fds[1], event)
	require.NoError(t, err)
	c.write(t, 1, string(make([]byte, 2000)))
	l.step()
	assert.Equal(t, []string{"1"}, c.reopened())
}

// After events were lost, logs are watched once more: a watch ends with its event.
func TestRotator_WatchesAfterLostEvents(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "0.log"), []byte("x"), 0o600))
	w := newTestWatch(t)
	l := &logState{id: "c", path: "0.log"}
	r, err := New(Config{Runtime: noContainers{}, LogsDir: dir})
	require.NoError(t, err)
	r.logs[l.path], r.polled[l], r.logWatch = l, struct{}{}, w
	opened, err := os.OpenRoot(dir)
	require.NoError(t, err)
	defer opened.Close()
	poll := func() {
		r.polled[l] = struct{}{}
		l.pollNow()
		r.pollLogs(t.Context(), logRoot{Root: opened}, nil)
	}
	poll()
	poll()
	require.Len(t, watches(t, w), 1)
	require.Empty(t, r.polled, "it is idle and watched")

	// The log is written, which ends its watch, and the event is lost.
	require.NoError(t, os.WriteFile(filepath.Join(dir, "0.log"), []byte("y"), 0o600))
	require.Eventually(t, func() bool { return len(watches(t, w)) == 0 }, time.Minute, time.Millisecond)
	inotify, err := unix.Dup(w.fd)
	require.NoError(t, err)
	defer unix.Close(inotify)
	var lost [2]int
	require.NoError(t, unix.Pipe2(lost[:], unix.O_CLOEXEC|unix.O_NONBLOCK))
	overflow := make([]byte, unix.SizeofInotifyEvent)
	binary.NativeEndian.PutUint32(overflow[4:], unix.IN_Q_OVERFLOW)
	_, err = unix.Write(lost[1], overflow)
	require.NoError(t, err)
	require.NoError(t, unix.Dup3(lost[0], w.fd, unix.O_CLOEXEC))
	require.NoError(t, unix.Close(lost[0]))
	require.NoError(t, unix.Close(lost[1]))
	r.pollLogs(t.Context(), logRoot{Root: opened}, nil)
	require.NoError(t, unix.Dup3(inotify, w.fd, unix.O_CLOEXEC))
	buf := make([]byte, 4096)
	_, err = unix.Read(w.fd, buf) // the lost events
	require.NoError(t, err)

	require.Contains(t, r.polled, l)
	poll()
	assert.Len(t, watches(t, w), 1)
	assert.Empty(t, r.polled)
}

// A value announces events, once until the next one is asked for, and the end of the watch ends the goroutine.
func TestLogWatch_Notify(t *testing.T) {
	w, err := newLogWatch()
	require.NoError(t, err)
	path := filepath.Join(t.TempDir(), "log")
	require.NoError(t, os.WriteFile(path, nil, 0o600))
	l := new(logState)
	require.True(t, w.watch(path, l))
	var wg sync.WaitGroup
	events := w.notify(&wg)
	for range 3 {
		select {
		case <-events:
			t.Fatal("a value without an event")
		case <-time.After(20 * time.Millisecond):
		}
		require.NoError(t, os.WriteFile(path, []byte("x"), 0o600))
		<-events
		logs, _ := drain(w)
		assert.Equal(t, []*logState{l}, logs)
		require.True(t, w.watch(path, l))
		w.awaitNext()
	}
	require.NoError(t, os.WriteFile(path, []byte("x"), 0o600)) // which is not read
	w.close()
	wg.Wait()
	assert.Nil(t, (*logWatch)(nil).notify(&wg))
}

// CG-3: a node with idle logs waits for their events: no timer fires in this time.
func TestRotator_WaitsForEvents(t *testing.T) {
	c := newLogFiles(t, 3)
	r, err := New(Config{Runtime: c, LogsDir: c.dir, MaxSize: 1000, SizePollInterval: 10 * time.Millisecond, MonitorInterval: time.Hour, WaitForEvents: true})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	polls := make(chan struct{}, 1000) // of logs that are not idle
	r.freeBytes = func(string) uint64 { polls <- struct{}{}; return 1 << 40 }
	go func() { ended <- r.Run(ctx) }()
	awaitIdle := func() {
		t.Helper()
		for {
			select {
			case <-polls:
			case <-time.After(100 * time.Millisecond):
				return
			}
		}
	}
	awaitIdle()
	for range 3 {
		before := len(c.reopened())
		c.write(t, 1, string(make([]byte, 2000)))
		require.Eventually(t, func() bool { return len(c.reopened()) == before+1 }, time.Minute, time.Millisecond)
		awaitIdle()
	}
	cancel()
	require.NoError(t, <-ended)
	assert.Equal(t, []string{"1", "1", "1"}, c.reopened())
	assert.True(t, r.waits)
}
