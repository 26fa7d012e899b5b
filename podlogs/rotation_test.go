package podlogs_test

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"os"
	goruntime "runtime"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/internal/logpath"
	"github.com/sublet-dev/agent/podlogs"
)

// logSize returns the size of the log of TestReader_FollowsLargeLog; docs/benchmarks.md has the figures of SUBLET_LOG_MB=1024.
func logSize(t *testing.T) int64 {
	t.Helper()
	mb := 16
	if s := os.Getenv("SUBLET_LOG_MB"); s != "" {
		var err error
		mb, err = strconv.Atoi(s)
		require.NoError(t, err)
	}
	return int64(mb) << 20
}

// sequence checks that lines are numbered.
type sequence struct {
	next    int
	pending []byte
	err     error
}

func (s *sequence) Write(b []byte) (int, error) {
	s.pending = append(s.pending, b...)
	for s.err == nil {
		line, rest, ok := bytes.Cut(s.pending, []byte{'\n'})
		if !ok {
			break
		}
		number, _, _ := bytes.Cut(line, []byte{' '})
		if got, err := strconv.Atoi(string(number)); err != nil || got != s.next {
			s.err = fmt.Errorf("line %d instead of %d: %.40q", got, s.next, line)
		}
		s.next++
		s.pending = append(s.pending[:0], rest...)
	}
	return len(b), s.err
}

// OP-1: a log is followed by inotify while it is written as fast as possible, rotated and
// compressed: nothing is lost or duplicated, and memory is bounded.
func TestReader_FollowsLargeLog(t *testing.T) {
	l := newTestLog(t)
	l.raw("")
	r, err := podlogs.New(podlogs.Config{LogsDir: l.dir})
	require.NoError(t, err)
	var stopped atomic.Bool
	done := make(chan error, 1)
	var got sequence
	go func() {
		log := podlogs.Log{Path: logFile, IsRunning: func() bool { return !stopped.Load() }}
		done <- r.Copy(t.Context(), &got, &got, log, &corev1.PodLogOptions{Follow: true})
	}()
	size, peak, start := logSize(t), uint64(0), time.Now()
	lines := writeRotated(t, l, size, size/20, func() { peak = max(peak, liveBytes()) })
	stopped.Store(true)
	require.NoError(t, <-done)
	require.Equal(t, lines, got.next)
	peak = max(peak, liveBytes())
	require.Less(t, peak, uint64(4<<20), "it does not grow with the log")
	t.Logf("%d MB in %d lines and 20 files, followed in %v, at most %.1f MB of live objects", size>>20, lines, time.Since(start).Round(time.Millisecond), float64(peak)/(1<<20))
}

// liveBytes returns the size of all live objects. How much garbage there is beside them
// depends on when it was last collected, which says nothing about the reader.
func liveBytes() uint64 {
	var m goruntime.MemStats
	goruntime.GC()
	goruntime.ReadMemStats(&m)
	return m.HeapAlloc
}

// writeRotated writes a log, which it rotates like logrotate, and returns the number of
// lines. It calls onRotation after each rotation.
func writeRotated(t *testing.T, l *testLog, size, fileSize int64, onRotation func()) (lines int) {
	t.Helper()
	var written, inFile int64
	create := func() (*os.File, *bufio.Writer) {
		f, err := os.OpenFile(l.path(), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
		require.NoError(t, err)
		return f, bufio.NewWriterSize(f, 8<<10)
	}
	f, w := create()
	var older string
	for written < size {
		n, err := fmt.Fprintf(w, "2026-05-01T12:00:00.%09dZ stdout F %d %0100d\n", lines%1_000_000_000, lines, 0)
		require.NoError(t, err)
		lines++
		written, inFile = written+int64(n), inFile+int64(n)
		if inFile < fileSize {
			continue
		}
		rotated := l.rotate(time.Now())
		_, err = fmt.Fprintf(w, "2026-05-01T12:00:00.%09dZ stdout F %d late\n", lines%1_000_000_000, lines)
		lines++
		require.NoError(t, err)
		require.NoError(t, w.Flush())
		require.NoError(t, f.Close())
		f, w = create()
		inFile = 0
		if older != "" {
			zipFile(t, older)
		}
		older = rotated
		onRotation()
	}
	require.NoError(t, w.Flush())
	require.NoError(t, f.Close())
	return lines
}

func zipFile(t *testing.T, name string) {
	t.Helper()
	in, err := os.Open(name)
	require.NoError(t, err)
	out, err := os.Create(name + ".tmp")
	require.NoError(t, err)
	z, err := gzip.NewWriterLevel(out, gzip.BestSpeed)
	require.NoError(t, err)
	_, err = io.Copy(z, in)
	require.NoError(t, err)
	require.NoError(t, z.Close())
	require.NoError(t, out.Close())
	require.NoError(t, in.Close())
	require.NoError(t, os.Rename(name+".tmp", name+logpath.Compressed))
	require.NoError(t, os.Remove(name))
}

// OP-3: a line of 64 MB takes no more memory than others.
func TestReader_BoundsMemory(t *testing.T) {
	l := newTestLog(t)
	l.raw("2026-05-01T12:00:00Z stdout F ")
	block := string(bytes.Repeat([]byte{'x'}, 1<<20))
	for range 64 {
		l.raw(block)
	}
	l.raw("\n")
	r := l.reader()
	for _, o := range []corev1.PodLogOptions{{}, {TailLines: new(int64(1))}} {
		var before, after goruntime.MemStats
		var n counter
		goruntime.ReadMemStats(&before)
		require.NoError(t, r.Copy(t.Context(), &n, &n, podlogs.Log{Path: logFile}, &o))
		goruntime.ReadMemStats(&after)
		require.EqualValues(t, 64<<20+1, n)
		require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(1<<20))
	}
}

type counter int64

func (c *counter) Write(b []byte) (int, error) {
	*c += counter(len(b))
	return len(b), nil
}

func BenchmarkReader(b *testing.B) {
	dir := b.TempDir()
	l := &testLog{dir: dir}
	require.NoError(b, os.MkdirAll(dir+"/ns_web_u1/app", 0o700))
	line := "2026-05-01T12:00:00.123456789Z stdout F " + string(bytes.Repeat([]byte{'x'}, 100)) + "\n"
	text := bytes.Repeat([]byte(line), 100_000)
	require.NoError(b, os.WriteFile(l.path(), text, 0o600))
	r, err := podlogs.New(podlogs.Config{LogsDir: dir})
	require.NoError(b, err)
	for name, read := range map[string]func() error{
		"plain copy": func() error {
			f, err := os.Open(l.path())
			if err == nil {
				_, err = io.Copy(new(counter), f)
			}
			_ = f.Close()
			return err
		},
		"all": func() error {
			return r.Copy(b.Context(), new(counter), nil, podlogs.Log{Path: logFile}, &corev1.PodLogOptions{})
		},
		"tail of 100": func() error {
			return r.Copy(b.Context(), new(counter), nil, podlogs.Log{Path: logFile}, &corev1.PodLogOptions{TailLines: new(int64(100))})
		},
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(int64(len(text)))
			for b.Loop() {
				if err := read(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
