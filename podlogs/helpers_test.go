package podlogs_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/internal/logpath"
	"github.com/sublet-dev/agent/podlogs"
)

const logFile = "ns_web_u1/app/0.log"

var start = time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)

// testLog is a log as a runtime writes it.
type testLog struct {
	t       *testing.T
	dir     string
	entries int // their times are seconds after start
}

func newTestLog(t *testing.T) *testLog {
	t.Helper()
	l := &testLog{t: t, dir: t.TempDir()}
	require.NoError(t, os.MkdirAll(filepath.Dir(l.path()), 0o700))
	return l
}

func (l *testLog) path() string { return filepath.Join(l.dir, logFile) }

// raw appends to the current file.
func (l *testLog) raw(text string) {
	l.t.Helper()
	f, err := os.OpenFile(l.path(), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	require.NoError(l.t, err)
	_, err = f.WriteString(text)
	require.NoError(l.t, err)
	require.NoError(l.t, f.Close())
}

// write appends entries: each is a stream, a tag and a text.
func (l *testLog) write(entries ...string) {
	l.t.Helper()
	for _, e := range entries {
		l.raw(start.Add(time.Duration(l.entries)*time.Second).Format(time.RFC3339Nano) + " " + e + "\n")
		l.entries++
	}
}

// lines appends numbered lines.
func (l *testLog) lines(from, to int) {
	l.t.Helper()
	for i := from; i < to; i++ {
		l.write(fmt.Sprintf("stdout F line %d", i))
	}
}

// rotate renames the current file.
func (l *testLog) rotate(at time.Time) (rotated string) {
	l.t.Helper()
	rotated = logpath.Rotated(l.path(), at)
	require.NoError(l.t, os.Rename(l.path(), rotated))
	return rotated
}

// compress does what logrotate does.
func (l *testLog) compress(name string) {
	l.t.Helper()
	b, err := os.ReadFile(name)
	require.NoError(l.t, err)
	require.NoError(l.t, os.WriteFile(name+".gz.tmp", zip(b), 0o600))
	require.NoError(l.t, os.Rename(name+".gz.tmp", name+".gz"))
	require.NoError(l.t, os.Remove(name))
}

func zip(b []byte) []byte {
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	_, _ = w.Write(b)
	_ = w.Close()
	return out.Bytes()
}

// unwatched makes a Reader poll.
func unwatched(string, func()) (func(), error) { return nil, errors.New("no space left on device") }

func (l *testLog) reader() *podlogs.Reader {
	l.t.Helper()
	r, err := podlogs.New(podlogs.Config{LogsDir: l.dir, Watch: unwatched})
	require.NoError(l.t, err)
	return r
}

// read returns what a copy writes.
func (l *testLog) read(o corev1.PodLogOptions) string {
	l.t.Helper()
	out, err := l.tryRead(l.t.Context(), o)
	require.NoError(l.t, err)
	return out
}

func (l *testLog) tryRead(ctx context.Context, o corev1.PodLogOptions) (string, error) {
	l.t.Helper()
	var out bytes.Buffer
	err := l.reader().Copy(ctx, &out, &out, podlogs.Log{Path: logFile, IsRunning: func() bool { return false }}, &o)
	return out.String(), err
}

// numbered is what lines has written.
func numbered(from, to int) string {
	var out bytes.Buffer
	for i := from; i < to; i++ {
		fmt.Fprintf(&out, "line %d\n", i)
	}
	return out.String()
}
