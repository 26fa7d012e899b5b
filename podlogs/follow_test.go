package podlogs_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/podlogs"
)

// follower is a copy that follows a log.
type follower struct {
	mu      sync.Mutex
	out     bytes.Buffer
	stopped atomic.Bool // the container has
	done    chan error
}

func (f *follower) Write(b []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.out.Write(b)
}

// take returns what was written since the last call.
func (f *follower) take() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	defer f.out.Reset()
	return f.out.String()
}

func follow(ctx context.Context, l *testLog, o corev1.PodLogOptions) *follower {
	l.t.Helper()
	o.Follow = true
	f := &follower{done: make(chan error, 1)}
	r := l.reader()
	go func() {
		f.done <- r.Copy(ctx, f, f, podlogs.Log{Path: logFile, IsRunning: func() bool { return !f.stopped.Load() }}, &o)
	}()
	return f
}

// pause is longer than all periods of a follower.
func pause() { time.Sleep(2 * time.Second); synctest.Wait() }

// OP-5
func TestReader_FollowsUntilContainerEnds(t *testing.T) {
	l := newTestLog(t)
	synctest.Test(t, func(t *testing.T) {
		f := follow(t.Context(), l, corev1.PodLogOptions{})
		pause()
		assert.Empty(t, f.take(), "it waits for the first file")
		l.lines(0, 3)
		pause()
		assert.Equal(t, numbered(0, 3), f.take())
		l.raw("2026-05-01T12:00:00Z stdout F half a")
		pause()
		assert.Empty(t, f.take(), "the entry is not complete")
		l.raw("n entry\n")
		pause()
		assert.Equal(t, "half an entry\n", f.take())
		l.lines(3, 4)
		l.raw("2026-05-01T12:00:00Z stdout F cut off")
		f.stopped.Store(true)
		require.NoError(t, <-f.done)
		assert.Equal(t, numbered(3, 4)+"cut off\n", f.take())
	})
}

// A log that was deleted with its directory, and that the runtime has opened again, goes on. OP-5
func TestReader_FollowsReplacedDirectory(t *testing.T) {
	for name, dir := range map[string]func(l *testLog) string{
		"of the container": func(l *testLog) string { return filepath.Dir(l.path()) },
		"of the pod":       func(l *testLog) string { return filepath.Dir(filepath.Dir(l.path())) },
		"of all logs":      func(l *testLog) string { return l.dir },
	} {
		t.Run(name, func(t *testing.T) {
			l := newTestLog(t)
			synctest.Test(t, func(t *testing.T) {
				l.lines(0, 3)
				f := follow(t.Context(), l, corev1.PodLogOptions{})
				pause()
				for i := 3; i < 9; i += 3 {
					require.NoError(t, os.RemoveAll(dir(l)))
					pause()
					assert.Equal(t, numbered(i-3, i), f.take())
					require.NoError(t, os.MkdirAll(filepath.Dir(l.path()), 0o700))
					l.lines(i, i+2)
					l.rotate(start.Add(time.Duration(i) * time.Hour))
					l.lines(i+2, i+3)
					pause()
				}
				require.NoError(t, os.RemoveAll(dir(l)))
				f.stopped.Store(true)
				require.NoError(t, <-f.done)
				assert.Equal(t, numbered(6, 9), f.take())
			})
		})
	}
}

// Who follows a log in which nothing is written learns that it is there: a server answers its client then. OP-5
func TestReader_FollowsSilentLog(t *testing.T) {
	l := newTestLog(t)
	synctest.Test(t, func(t *testing.T) {
		var written [2]atomic.Int32
		var stopped atomic.Bool
		done := make(chan error, len(written))
		for i := range written {
			var out [2]io.Writer // stdout alone, and stderr alone
			out[i] = writerFunc(func([]byte) { written[i].Add(1) })
			go func() {
				done <- l.reader().Copy(t.Context(), out[0], out[1], podlogs.Log{Path: logFile, IsRunning: func() bool { return !stopped.Load() }}, &corev1.PodLogOptions{Follow: true})
			}()
		}
		pause()
		assert.Zero(t, written[0].Load()+written[1].Load(), "there is no log yet")
		l.raw("")
		pause()
		stopped.Store(true)
		for i := range written {
			require.NoError(t, <-done)
			assert.EqualValues(t, 1, written[i].Load())
		}
	})
}

// writerFunc is called with what is written.
type writerFunc func(b []byte)

func (f writerFunc) Write(b []byte) (int, error) {
	f(b)
	return len(b), nil
}

func TestReader_FollowsTail(t *testing.T) {
	l := newTestLog(t)
	l.lines(0, 10)
	l.rotate(start)
	l.lines(10, 12)
	synctest.Test(t, func(t *testing.T) {
		none, four := follow(t.Context(), l, corev1.PodLogOptions{TailLines: new(int64(0))}), follow(t.Context(), l, corev1.PodLogOptions{TailLines: new(int64(4))})
		pause()
		assert.Empty(t, none.take())
		assert.Equal(t, numbered(8, 12), four.take())
		l.lines(12, 13)
		pause()
		assert.Equal(t, numbered(12, 13), none.take())
		assert.Equal(t, numbered(12, 13), four.take())
		none.stopped.Store(true)
		four.stopped.Store(true)
		require.NoError(t, <-none.done)
		require.NoError(t, <-four.done)
	})
}

// OP-1: whatever rotation does and when, no line is lost or duplicated.
func TestReader_FollowsAcrossRotation(t *testing.T) {
	for name, rotation := range map[string]func(l *testLog){
		"renamed": func(l *testLog) {
			l.rotate(start)
			pause()
			l.lines(10, 20)
		},
		"renamed and created": func(l *testLog) {
			l.rotate(start)
			l.lines(10, 20)
		},
		"the old file is written on": func(l *testLog) {
			old := l.rotate(start)
			pause()
			l.lines(10, 15)
			require.NoError(l.t, os.Rename(l.path(), l.path()+"x"))
			b, err := os.ReadFile(l.path() + "x")
			require.NoError(l.t, err)
			require.NoError(l.t, os.Remove(l.path()+"x"))
			appendTo(l.t, old, b)
			l.lines(15, 20)
		},
		"the old file is written on after the new one was created": func(l *testLog) {
			old := l.rotate(start)
			l.raw("")
			time.Sleep(100 * time.Millisecond)
			appendTo(l.t, old, []byte("2026-05-01T12:00:00Z stdout F line 10\n"))
			l.lines(11, 20)
		},
		"several times": func(l *testLog) {
			for i := range 10 {
				l.rotate(start.Add(time.Duration(i)))
				l.lines(10+i, 11+i)
			}
		},
		"several times and compressed": func(l *testLog) {
			for i := range 10 {
				name := l.rotate(start.Add(time.Duration(i)))
				l.lines(10+i, 11+i)
				l.compress(name)
			}
		},
		"and the file that is read was removed": func(l *testLog) {
			require.NoError(l.t, os.Remove(l.rotate(start)))
			l.lines(10, 15)
			l.rotate(start.Add(1))
			l.lines(15, 20)
		},
		"and undone": func(l *testLog) {
			old := l.rotate(start)
			pause()
			require.NoError(l.t, os.Link(old, l.path()))
			pause()
			require.NoError(l.t, os.Remove(old))
			l.lines(10, 15)
			pause()
			l.rotate(start.Add(1))
			l.lines(15, 20)
		},
		"truncated": func(l *testLog) {
			require.NoError(l.t, os.Truncate(l.path(), 0))
			pause()
			l.lines(10, 20)
		},
	} {
		t.Run(name, func(t *testing.T) {
			for _, readBefore := range []bool{true, false} {
				l := newTestLog(t)
				synctest.Test(t, func(t *testing.T) {
					l.lines(0, 10)
					f := follow(t.Context(), l, corev1.PodLogOptions{})
					if synctest.Wait(); !readBefore && name != "truncated" {
						l.lines(10, 10)
					}
					rotation(l)
					pause()
					l.lines(20, 21)
					f.stopped.Store(true)
					require.NoError(t, <-f.done)
					assert.Equal(t, numbered(0, 21), f.take())
				})
			}
		})
	}
}

// A follower that begins while there is no current file goes on with that.
func TestReader_FollowsFromRotatedFile(t *testing.T) {
	for _, compressed := range []bool{false, true} {
		l := newTestLog(t)
		l.lines(0, 10)
		if name := l.rotate(start); compressed {
			l.compress(name)
		}
		synctest.Test(t, func(t *testing.T) {
			f := follow(t.Context(), l, corev1.PodLogOptions{TailLines: new(int64(2))})
			pause()
			l.lines(10, 12)
			pause()
			assert.Equal(t, numbered(8, 12), f.take())
			f.stopped.Store(true)
			require.NoError(t, <-f.done)
			assert.Empty(t, f.take())
		})
	}
}

func TestReader_FollowEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newTestLog(t)
		l.lines(0, 10)
		disconnected := errors.New("client is gone")
		ctx, cancel := context.WithCancelCause(t.Context())
		f := follow(ctx, l, corev1.PodLogOptions{})
		limited := follow(t.Context(), l, corev1.PodLogOptions{LimitBytes: new(int64(8))})
		pause()
		cancel(disconnected)
		require.ErrorIs(t, <-f.done, disconnected)
		require.NoError(t, <-limited.done)
		assert.Equal(t, "line 0\nl", limited.take())

		f = follow(t.Context(), l, corev1.PodLogOptions{})
		pause()
		require.NoError(t, os.Remove(l.path()))
		require.NoError(t, os.Symlink("/etc/passwd", l.path()))
		require.ErrorIs(t, <-f.done, podlogs.ErrNotRegular)
		assert.Equal(t, numbered(0, 10), f.take())
	})
}

// The pod and its logs are removed while they are read.
func TestReader_FollowEndsWithDirectory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newTestLog(t)
		l.lines(0, 10)
		f := follow(t.Context(), l, corev1.PodLogOptions{})
		pause()
		require.NoError(t, os.RemoveAll(l.dir))
		pause()
		f.stopped.Store(true)
		require.NoError(t, <-f.done)
		assert.Equal(t, numbered(0, 10), f.take())
	})
}

func appendTo(t *testing.T, path string, b []byte) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
	require.NoError(t, err)
	_, err = f.Write(b)
	require.NoError(t, err)
	require.NoError(t, f.Close())
}
