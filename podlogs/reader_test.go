package podlogs_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sublet-dev/agent/podlogs"
)

func TestReader_Options(t *testing.T) {
	l := newTestLog(t)
	l.write("stdout F one", "stderr F two", "stdout F three", "stderr F ", "stdout F")
	for name, tt := range map[string]struct {
		options corev1.PodLogOptions
		want    string
	}{
		"everything":               {corev1.PodLogOptions{}, "one\ntwo\nthree\n\n\n"},
		"both streams":             {corev1.PodLogOptions{Stream: new("All")}, "one\ntwo\nthree\n\n\n"},
		"stdout":                   {corev1.PodLogOptions{Stream: new("Stdout")}, "one\nthree\n\n"},
		"stderr":                   {corev1.PodLogOptions{Stream: new("Stderr")}, "two\n\n"},
		"since a time":             {corev1.PodLogOptions{SinceTime: &metav1.Time{Time: start.Add(2 * time.Second)}}, "three\n\n\n"},
		"since after the end":      {corev1.PodLogOptions{SinceTime: &metav1.Time{Time: start.Add(time.Hour)}}, ""},
		"since less than the age":  {corev1.PodLogOptions{SinceSeconds: new(int64(1))}, ""},
		"since more than an epoch": {corev1.PodLogOptions{SinceSeconds: new(int64(1) << 62)}, "one\ntwo\nthree\n\n\n"},
		"the last lines":           {corev1.PodLogOptions{TailLines: new(int64(3))}, "three\n\n\n"},
		"no line":                  {corev1.PodLogOptions{TailLines: new(int64(0))}, ""},
		"more lines than there are": {
			corev1.PodLogOptions{TailLines: new(int64(1) << 62)}, "one\ntwo\nthree\n\n\n",
		},
		"the last lines of a stream": {corev1.PodLogOptions{TailLines: new(int64(2)), Stream: new("Stderr")}, "two\n\n"},
		"limited":                    {corev1.PodLogOptions{LimitBytes: new(int64(6))}, "one\ntw"},
		"limited to a line":          {corev1.PodLogOptions{LimitBytes: new(int64(4))}, "one\n"},
		"limited to more":            {corev1.PodLogOptions{LimitBytes: new(int64(4000))}, "one\ntwo\nthree\n\n\n"},
		"with times": {
			corev1.PodLogOptions{Timestamps: true, TailLines: new(int64(2))},
			"2026-05-01T12:00:03.000000000Z \n2026-05-01T12:00:04.000000000Z \n",
		},
		"followed to the end of the container": {corev1.PodLogOptions{Follow: true}, "one\ntwo\nthree\n\n\n"},
	} {
		assert.Equal(t, tt.want, l.read(tt.options), name)
	}
}

func TestValidate(t *testing.T) {
	for want, o := range map[string]corev1.PodLogOptions{
		"tailLines: -1 must not be negative":        {TailLines: new(int64(-1))},
		"limitBytes: 0 must be greater than 0":      {LimitBytes: new(int64(0))},
		"sinceSeconds: 0 must be greater than 0":    {SinceSeconds: new(int64(0))},
		"at most one of sinceTime and sinceSeconds": {SinceSeconds: new(int64(1)), SinceTime: &metav1.Time{}},
		`stream: "stdout" must be All, Stdout or`:   {Stream: new("stdout")},
	} {
		err := podlogs.Validate(&o)
		require.ErrorIs(t, err, podlogs.ErrInvalidOptions)
		require.ErrorContains(t, err, want)
		_, err = newTestLog(t).tryRead(t.Context(), o)
		require.ErrorIs(t, err, podlogs.ErrInvalidOptions)
	}
	require.NoError(t, podlogs.Validate(&corev1.PodLogOptions{TailLines: new(int64(0)), LimitBytes: new(int64(1)), SinceSeconds: new(int64(1))}))
}

func TestNew_RequiresLogsDir(t *testing.T) {
	_, err := podlogs.New(podlogs.Config{})
	require.EqualError(t, err, "podlogs: Config.LogsDir required")
}

// OP-2: the parts of a line are joined, a time precedes the line, and it has the fate of its
// first part.
func TestReader_JoinsPartialLines(t *testing.T) {
	l := newTestLog(t)
	l.write("stdout P a", "stdout P b", "stdout F c", "stdout P:x d", "stdout F:y e")
	assert.Equal(t, "abc\nde\n", l.read(corev1.PodLogOptions{}))
	assert.Equal(t, "2026-05-01T12:00:00.000000000Z abc\n2026-05-01T12:00:03.000000000Z de\n", l.read(corev1.PodLogOptions{Timestamps: true}))
	assert.Equal(t, "de\n", l.read(corev1.PodLogOptions{SinceTime: &metav1.Time{Time: start.Add(time.Second)}}))
	assert.Equal(t, "de\n", l.read(corev1.PodLogOptions{TailLines: new(int64(1))}))
	assert.Equal(t, "abc\nde\n", l.read(corev1.PodLogOptions{TailLines: new(int64(2))}))
	l.write("stdout P begun")
	assert.Equal(t, "de\nbegun", l.read(corev1.PodLogOptions{TailLines: new(int64(2))}), "a line that goes on counts")
	assert.Equal(t, "", l.read(corev1.PodLogOptions{TailLines: new(int64(0))}))
}

func TestReader_LeavesInvalidEntriesOut(t *testing.T) {
	l := newTestLog(t)
	l.raw("no entry\n\n" + strings.Repeat("x", 1<<20) + "\n2026-05-01 stdout F date\n2026-05-01T12:00:00Z stdin F stream\n2026-05-01T12:00:00Z stdout X tag\n")
	l.raw("9999-99-99T99:99:99Z stdout F time\n2026-05-01T12:00:00Z stdout F" + strings.Repeat(":x", 1<<17) + " tags\n\x00\xff\xfe \n")
	l.write("stdout F kept")
	l.raw("2026-05-01T12:00:00Z stdout F cut off")
	assert.Equal(t, "kept\ncut off\n", l.read(corev1.PodLogOptions{}))
	assert.Equal(t, "kept\ncut off\n", l.read(corev1.PodLogOptions{TailLines: new(int64(2))}))
	assert.Equal(t, "cut off\n", l.read(corev1.PodLogOptions{TailLines: new(int64(1))}))
}

// Lines are longer than all buffers, and blocks end anywhere in a line.
func TestReader_LongLines(t *testing.T) {
	for _, size := range []int{1, 1000, 64<<10 - 40, 64<<10 - 31, 64<<10 - 30, 64<<10 - 29, 64 << 10, 1 << 20} {
		l := newTestLog(t)
		line := strings.Repeat("x", size)
		l.write("stdout F first", "stdout F "+line, "stderr F "+line+"y", "stdout P "+line, "stdout F z", "stdout F last")
		want := []string{"first", line, line + "y", line + "z", "last", ""}
		require.Equal(t, want, strings.Split(l.read(corev1.PodLogOptions{}), "\n"), size)
		for n := range 6 {
			got := strings.Split(l.read(corev1.PodLogOptions{TailLines: new(int64(n))}), "\n")
			require.Equal(t, want[len(want)-n-1:], got, "%d lines of %d", n, size)
		}
	}
}

func TestReader_RotatedFiles(t *testing.T) {
	l := newTestLog(t)
	l.lines(0, 10)
	first := l.rotate(start)
	l.lines(10, 20)
	second := l.rotate(start.Add(time.Second))
	l.lines(20, 25)
	check := func() {
		t.Helper()
		assert.Equal(t, numbered(0, 25), l.read(corev1.PodLogOptions{}))
		for n := range 30 {
			assert.Equal(t, numbered(max(25-n, 0), 25), l.read(corev1.PodLogOptions{TailLines: new(int64(n))}), n)
			assert.Equal(t, numbered(max(25-n, 0), 25), l.read(corev1.PodLogOptions{TailLines: new(int64(n)), Follow: true}), n)
		}
	}
	check()
	l.compress(first)
	check()
	l.compress(second)
	check()
	current := l.rotate(start.Add(2 * time.Second)) // the runtime has not created a new one
	check()
	l.compress(current)
	check()
	require.NoError(t, os.WriteFile(l.path()+".20260501-120007.gz", []byte("damaged"), 0o600))
	require.NoError(t, os.WriteFile(l.path()+".20260501-120008.gz", zip([]byte(strings.Repeat("no entry\n", 5)))[:30], 0o600))
	require.NoError(t, os.WriteFile(l.path()+".tmp", []byte("x"), 0o600))
	require.NoError(t, os.WriteFile(strings.Replace(l.path(), "0.log", "1.log", 1), []byte("x"), 0o600))
	check()
}

// A line goes on in the next file.
func TestReader_PartialLinesAcrossFiles(t *testing.T) {
	l := newTestLog(t)
	l.write("stdout F one", "stdout P tw")
	first := l.rotate(start)
	l.write("stdout F o", "stdout P thr")
	second := l.rotate(start.Add(time.Second))
	l.write("stdout F ee")
	check := func() {
		t.Helper()
		assert.Equal(t, "three\n", l.read(corev1.PodLogOptions{TailLines: new(int64(1))}))
		assert.Equal(t, "two\nthree\n", l.read(corev1.PodLogOptions{TailLines: new(int64(2))}))
		assert.Equal(t, "one\ntwo\nthree\n", l.read(corev1.PodLogOptions{TailLines: new(int64(3))}))
	}
	check()
	l.compress(first)
	check()
	l.compress(second)
	check()
}

// A compressed file may be the newest one, and end within a line.
func TestReader_TailOfCompressedPartialLine(t *testing.T) {
	l := newTestLog(t)
	l.write("stdout F one", "stdout F two", "stdout P thr")
	l.compress(l.rotate(start))
	for n, want := range []string{"", "thr", "two\nthr", "one\ntwo\nthr"} {
		assert.Equal(t, want, l.read(corev1.PodLogOptions{TailLines: new(int64(n))}), n)
	}
}

// The newest file may be compressed, and then has more in it than is read ahead.
func TestReader_TailOfLargeCompressedFile(t *testing.T) {
	l := newTestLog(t)
	random := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // reproducible
	var want []string
	for range 2000 {
		want = append(want, fmt.Sprintf("%016x", random.Uint64()))
		l.write("stdout F " + want[len(want)-1])
	}
	l.compress(l.rotate(start))
	for _, n := range []int{1, 1000, 2000} {
		for _, follow := range []bool{false, true} {
			got := l.read(corev1.PodLogOptions{TailLines: new(int64(n)), Follow: follow})
			require.Equal(t, want[len(want)-n:], strings.Fields(got), "%d lines", n)
		}
	}
}

func TestReader_NoLog(t *testing.T) {
	l := newTestLog(t)
	for _, follow := range []bool{false, true} {
		_, err := l.tryRead(t.Context(), corev1.PodLogOptions{Follow: follow})
		require.ErrorIs(t, err, podlogs.ErrNoLog)
	}
	require.NoError(t, os.RemoveAll(filepath.Join(l.dir, "ns_web_u1")))
	_, err := l.tryRead(t.Context(), corev1.PodLogOptions{})
	require.ErrorIs(t, err, podlogs.ErrNoLog)
	require.ErrorIs(t, err, os.ErrNotExist)
	require.NotContains(t, err.Error(), "\n", "kubectl logs shows it")
	require.NoError(t, os.Remove(l.dir))
	_, err = l.tryRead(t.Context(), corev1.PodLogOptions{})
	require.ErrorIs(t, err, podlogs.ErrNoLog)
}

// OP-4: a container that can write to its logs directory puts other things there.
func TestReader_ReadsRegularFilesOfTheContainerOnly(t *testing.T) {
	secret := func(t *testing.T, dir string) string {
		path := filepath.Join(dir, "0.log")
		require.NoError(t, os.WriteFile(path, []byte("2026-05-01T12:00:00Z stdout F secret\n"), 0o600))
		return path
	}
	for name, replace := range map[string]func(t *testing.T, l *testLog){
		"a link": func(t *testing.T, l *testLog) { require.NoError(t, os.Symlink(secret(t, t.TempDir()), l.path())) },
		"a near one": func(t *testing.T, l *testLog) {
			secret(t, l.dir)
			require.NoError(t, os.Symlink("../../0.log", l.path()))
		},
		"a FIFO": func(t *testing.T, l *testLog) { require.NoError(t, unix.Mkfifo(l.path(), 0o600)) },
		"a device": func(t *testing.T, l *testLog) {
			if err := unix.Mknod(l.path(), unix.S_IFCHR|0o600, int(unix.Mkdev(1, 5))); err != nil {
				t.Skip(err)
			}
		},
		"a directory": func(t *testing.T, l *testLog) { require.NoError(t, os.Mkdir(l.path(), 0o700)) },
		"a linked directory": func(t *testing.T, l *testLog) {
			dir := t.TempDir()
			secret(t, dir)
			require.NoError(t, os.Remove(filepath.Dir(l.path())))
			require.NoError(t, os.Symlink(dir, filepath.Dir(l.path())))
		},
		"another pod's directory": func(t *testing.T, l *testLog) {
			other := filepath.Join(l.dir, "ns_other_u2", "app")
			require.NoError(t, os.MkdirAll(other, 0o700))
			secret(t, other)
			require.NoError(t, os.RemoveAll(filepath.Join(l.dir, "ns_web_u1")))
			require.NoError(t, os.Symlink("ns_other_u2", filepath.Join(l.dir, "ns_web_u1")))
		},
	} {
		t.Run(name, func(t *testing.T) {
			for _, follow := range []bool{false, true} {
				l := newTestLog(t)
				replace(t, l)
				out, err := l.tryRead(t.Context(), corev1.PodLogOptions{Follow: follow})
				require.Error(t, err)
				require.Empty(t, out)
			}
		})
	}
	l := newTestLog(t)
	l.write("stdout F mine")
	require.NoError(t, os.Symlink(secret(t, t.TempDir()), l.path()+".20260501-120000"))
	require.NoError(t, unix.Mkfifo(l.path()+".20260501-120001", 0o600))
	assert.Equal(t, "mine\n", l.read(corev1.PodLogOptions{}))
	assert.Equal(t, "mine\n", l.read(corev1.PodLogOptions{TailLines: new(int64(9))}))
	for _, path := range []string{"", "../0.log", "/etc/passwd", "ns_web_u1/../../x"} {
		err := l.reader().Copy(t.Context(), io.Discard, io.Discard, podlogs.Log{Path: path}, &corev1.PodLogOptions{})
		require.Error(t, err, path)
	}
}

type failingWriter struct{ err error }

func (w failingWriter) Write([]byte) (int, error) { return 0, w.err }

func TestReader_StopsWithWriterAndContext(t *testing.T) {
	l := newTestLog(t)
	l.lines(0, 10_000)
	disconnected := errors.New("client is gone")
	require.ErrorIs(t, l.reader().Copy(t.Context(), failingWriter{disconnected}, failingWriter{disconnected}, podlogs.Log{Path: logFile}, &corev1.PodLogOptions{}), disconnected)
	require.ErrorIs(t, l.reader().Copy(t.Context(), failingWriter{disconnected}, failingWriter{disconnected}, podlogs.Log{Path: logFile}, &corev1.PodLogOptions{TailLines: new(int64(1))}), disconnected)
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(disconnected)
	for _, o := range []corev1.PodLogOptions{{}, {Follow: true}, {TailLines: new(int64(1))}} {
		require.ErrorIs(t, l.reader().Copy(ctx, new(bytes.Buffer), new(bytes.Buffer), podlogs.Log{Path: logFile}, &o), disconnected)
	}
}

func TestReader_SeparatesStreams(t *testing.T) {
	l := newTestLog(t)
	l.write("stdout F one", "stderr P tw", "stdout F three", "stderr F o")
	var stdout, stderr bytes.Buffer
	log := podlogs.Log{Path: logFile}
	require.NoError(t, l.reader().Copy(t.Context(), &stdout, &stderr, log, &corev1.PodLogOptions{}))
	assert.Equal(t, "one\nthree\n", stdout.String())
	assert.Equal(t, "two\n", stderr.String())
	stdout.Reset()
	stderr.Reset()
	require.NoError(t, l.reader().Copy(t.Context(), nil, &stderr, log, &corev1.PodLogOptions{LimitBytes: new(int64(2))}))
	assert.Equal(t, "tw", stderr.String(), "what is not written does not count")
	require.NoError(t, l.reader().Copy(t.Context(), &stdout, nil, log, &corev1.PodLogOptions{}))
	assert.Equal(t, "one\nthree\n", stdout.String())
	// Writers that cannot be compared are not the same.
	var list sliceWriter
	require.NoError(t, l.reader().Copy(t.Context(), list, list, log, &corev1.PodLogOptions{}))
}

type sliceWriter []byte

func (sliceWriter) Write(b []byte) (int, error) { return len(b), nil }
