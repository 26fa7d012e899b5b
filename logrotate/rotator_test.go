package logrotate

import (
	"bufio"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sublet-dev/agent/internal/leaktest"
	"github.com/sublet-dev/agent/runtime"
)

func TestMain(m *testing.M) {
	if os.Getenv(socketEnv) != "" {
		rotateUntilKilled() // see TestRotator_KilledAnywhere
		return
	}
	leaktest.Main(m)
}

const logOf = "ns_web_u1/app/0.log"

// writer is a runtime with one container that writes numbered lines.
type writer struct {
	dir string

	mu      sync.Mutex
	f       *os.File
	line    int
	longest time.Duration // that a write was held up
	reopens int
	fail    error // of reopening
}

func newWriter(t *testing.T) *writer {
	w := &writer{dir: t.TempDir()}
	require.NoError(t, os.MkdirAll(filepath.Dir(w.path()), 0o755))
	w.open()
	t.Cleanup(func() { _ = w.f.Close() })
	return w
}

func (w *writer) path() string { return filepath.Join(w.dir, logOf) }

func (w *writer) open() {
	f, err := os.OpenFile(w.path(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		panic(err)
	}
	if w.f != nil {
		_ = w.f.Close()
	}
	w.f = f
}

// write writes lines of 100 bytes.
func (w *writer) write(lines int) {
	w.mu.Lock()
	const blank = "                                                                                                   "
	b := make([]byte, 0, 100*lines)
	for range lines {
		digits := len(b)
		b = strconv.AppendInt(b, int64(w.line), 10)
		b = append(append(b, blank[len(b)-digits:]...), '\n')
		w.line++
	}
	began := time.Now()
	_, _ = w.f.Write(b)
	w.longest = max(w.longest, time.Since(began))
	w.mu.Unlock()
}

func (w *writer) Pods(context.Context) ([]runtime.Pod, error) {
	return []runtime.Pod{{Namespace: "ns", Name: "web", UID: "u1", Containers: []runtime.Container{
		{ID: "c1", Name: "app", State: runtime.Running},
		{ID: "c2", Name: "../../etc", State: runtime.Running},
		{ID: "c3", Name: "dead", State: runtime.Exited},
	}}}, nil
}

func (w *writer) ReopenLog(_ context.Context, id string) error {
	began := time.Now()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.longest = max(w.longest, time.Since(began))
	w.reopens++
	if id != "c1" {
		return errors.New("unknown container " + id)
	}
	if w.fail != nil {
		return w.fail
	}
	w.open()
	return nil
}

// read returns all lines that are kept, the oldest first, and the file names.
func (w *writer) read(t *testing.T) (lines []int, names []string) {
	t.Helper()
	entries, err := os.ReadDir(filepath.Dir(w.path()))
	require.NoError(t, err)
	for _, e := range entries {
		names = append(names, e.Name())
	}
	slices.SortFunc(names, func(a, b string) int {
		if a == "0.log" || b == "0.log" {
			return strings.Compare(b, a) // the current one is last
		}
		return strings.Compare(a, b)
	})
	for _, name := range names {
		f, err := os.Open(filepath.Join(filepath.Dir(w.path()), name))
		require.NoError(t, err)
		var in io.Reader = f
		if strings.HasSuffix(name, ".gz") {
			in, err = gzip.NewReader(f)
			require.NoError(t, err)
		}
		scan := bufio.NewScanner(in)
		for scan.Scan() {
			n, err := strconv.Atoi(strings.TrimSpace(scan.Text()))
			require.NoError(t, err, name)
			lines = append(lines, n)
		}
		require.NoError(t, scan.Err())
		_ = f.Close()
	}
	return lines, names
}

// inOrder checks that the lines are the last ones, each once.
func (w *writer) inOrder(t *testing.T, lines []int) {
	t.Helper()
	require.NotEmpty(t, lines)
	for i, n := range lines {
		require.Equal(t, lines[0]+i, n, "line %d of the kept ones", i)
	}
	require.Equal(t, w.line-1, lines[len(lines)-1], "none is missing at the end")
}

func (w *writer) root(t *testing.T) logRoot {
	t.Helper()
	root, err := os.OpenRoot(w.dir)
	require.NoError(t, err)
	t.Cleanup(func() { _ = root.Close() })
	return logRoot{Root: root, maxFiles: 3, renames: new(sync.Mutex)}
}

func (w *writer) reopen() error { return w.ReopenLog(context.Background(), "c1") }

// CG-3: a container that writes as fast as 50 MB/s. SUBLET_LOG_SECONDS lets it do
// so for longer.
func TestRotator_RotationAtFullSpeed(t *testing.T) {
	seconds := 3
	if n, err := strconv.Atoi(os.Getenv("SUBLET_LOG_SECONDS")); err == nil {
		seconds = n
	} else if testing.Short() {
		seconds = 1
	}
	w := newWriter(t)
	rotations := 0
	var mu sync.Mutex
	r, err := New(Config{Runtime: w, LogsDir: w.dir, Hooks: Hooks{Rotated: func(_ string, bytes int64, took time.Duration, err error) {
		t.Logf("rotated at %d MB in %v", bytes>>20, took)
		assert.NoError(t, err)
		mu.Lock()
		rotations++
		mu.Unlock()
	}}})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- r.Run(ctx) }()

	var most int64
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(time.Duration(seconds) * time.Second); time.Now().Before(end); {
		<-tick.C
		w.write(1000) // 100 kB each 2 ms
		if w.line%100_000 == 0 {
			most = max(most, usage(t, w.dir))
		}
	}
	time.Sleep(300 * time.Millisecond)
	cancel()
	require.NoError(t, <-ended)
	lines, names := w.read(t)
	w.inOrder(t, lines)
	t.Logf("%d MB in %d s, %d rotations, at most %d MB on disk, kept %d MB in %v, a write took %v at most",
		w.line/10_000, seconds, rotations, most>>20, len(lines)/10_000, names, w.longest)
	assert.LessOrEqual(t, len(names), 5)
	assert.GreaterOrEqual(t, rotations, w.line/400_000, "files are not much longer than they may be")
	assert.GreaterOrEqual(t, len(lines), min(w.line, 300_000), "three full ones at least are kept")
	assert.Less(t, most, int64(160<<20), "the disk that it takes is bounded")
	if seconds > 10 { // too short a run, beside other tests, says nothing of this
		assert.Less(t, w.longest, 50*time.Millisecond)
	}
}

func usage(t *testing.T, dir string) (sum int64) {
	t.Helper()
	_ = filepath.WalkDir(dir, func(_ string, d os.DirEntry, _ error) error {
		if info, err := d.Info(); err == nil && info.Mode().IsRegular() {
			sum += info.Size()
		}
		return nil
	})
	return sum
}

// CG-3
func TestLogRoot_CompressesAllButNewest(t *testing.T) {
	w := newWriter(t)
	root := w.root(t)
	for range 5 {
		w.write(10)
		require.NoError(t, root.rotate(logOf, time.Now(), w.reopen))
		require.NoError(t, root.cleanup(t.Context(), logOf))
	}
	w.write(5)
	lines, names := w.read(t)
	w.inOrder(t, lines)
	assert.Len(t, lines, 25)
	require.Len(t, names, 3)
	assert.True(t, strings.HasSuffix(names[0], ".gz"), names)
	assert.False(t, strings.HasSuffix(names[1], ".gz"), "the newest is left for its readers")
}

// Until it has reopened, the runtime writes to the old file.
func TestLogRoot_LinesWrittenDuringRotation(t *testing.T) {
	w := newWriter(t)
	root := w.root(t)
	w.write(3)
	require.NoError(t, root.rotate(logOf, time.Now(), func() error {
		w.write(3)
		require.NoError(t, w.reopen())
		w.write(3)
		return nil
	}))
	lines, _ := w.read(t)
	w.inOrder(t, lines)
	assert.Len(t, lines, 9)
}

func TestLogRoot_ReopenFails(t *testing.T) {
	w := newWriter(t)
	root := w.root(t)
	w.write(3)
	w.fail = errors.New("no such container")
	require.ErrorIs(t, root.rotate(logOf, time.Now(), w.reopen), w.fail)
	_, names := w.read(t)
	assert.Equal(t, []string{"0.log"}, names, "it has its name back")

	// It was reopened, and the answer was lost.
	late := errors.New("deadline exceeded")
	w.fail = nil
	require.ErrorIs(t, root.rotate(logOf, time.Now(), func() error { _ = w.reopen(); return late }), late)
	w.write(2)
	lines, names := w.read(t)
	w.inOrder(t, lines)
	assert.Len(t, names, 2, "the new one is not written over")
	assert.Len(t, lines, 5)
}

// CG-3: a clock that is set back does not make the newest log the oldest.
func TestLogRoot_ClockSetBack(t *testing.T) {
	w := newWriter(t)
	root := w.root(t)
	now := time.Now()
	for i := range 4 {
		w.write(10)
		require.NoError(t, root.rotate(logOf, now.Add(-time.Duration(i)*time.Hour), w.reopen))
	}
	w.write(1)
	lines, _ := w.read(t)
	w.inOrder(t, lines)
	assert.Len(t, lines, 21)
}

// CG-3: killed anywhere, the next process goes on from there.
func TestRotator_AfterCrash(t *testing.T) {
	run := func(t *testing.T, w *writer, until func() bool) {
		t.Helper()
		r, err := New(Config{Runtime: w, LogsDir: w.dir, MaxSize: 1000, MaxFiles: 4, SizePollInterval: minPollInterval})
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- r.Run(ctx) }()
		assert.Eventually(t, until, time.Minute, 5*time.Millisecond)
		cancel()
		require.NoError(t, <-ended)
	}
	t.Run("renamed, not reopened", func(t *testing.T) {
		w := newWriter(t)
		w.write(5)
		require.NoError(t, os.Rename(w.path(), w.path()+".20260101-000000.000000000"))
		w.write(5)
		run(t, w, func() bool { _, err := os.Stat(w.path()); return err == nil })
		w.write(5)
		lines, _ := w.read(t)
		w.inOrder(t, lines)
		assert.Len(t, lines, 15)
	})
	t.Run("compression broken off", func(t *testing.T) {
		w := newWriter(t)
		root := w.root(t)
		for range 2 {
			w.write(5)
			require.NoError(t, root.rotate(logOf, time.Now(), w.reopen))
		}
		_, names := w.read(t)
		tmp := filepath.Join(filepath.Dir(w.path()), names[0]+".tmp")
		require.NoError(t, os.WriteFile(tmp, []byte("half"), 0o600))
		run(t, w, func() bool { return !exists(tmp) && exists(strings.TrimSuffix(tmp, ".tmp")+".gz") })
		w.write(5)
		lines, _ := w.read(t)
		w.inOrder(t, lines)
		assert.Len(t, lines, 15)
	})
	t.Run("compressed, the original still there", func(t *testing.T) {
		w := newWriter(t)
		root := w.root(t)
		for range 2 {
			w.write(5)
			require.NoError(t, root.rotate(logOf, time.Now(), w.reopen))
		}
		_, names := w.read(t)
		old := filepath.Join(filepath.Dir(logOf), names[0])
		require.NoError(t, root.pack(t.Context(), old, old+".gz", 0o600))
		run(t, w, func() bool { return !exists(filepath.Join(w.dir, old)) })
		w.write(5)
		lines, _ := w.read(t)
		w.inOrder(t, lines)
		assert.Len(t, lines, 15)
	})
	t.Run("more files than there may be", func(t *testing.T) {
		w := newWriter(t)
		root := w.root(t)
		root.maxFiles = 20
		for range 10 {
			w.write(5)
			require.NoError(t, root.rotate(logOf, time.Now(), w.reopen))
		}
		run(t, w, func() bool {
			names, _ := os.ReadDir(filepath.Dir(w.path()))
			return len(names) == 4
		})
	})
}

func exists(path string) bool { _, err := os.Lstat(path); return err == nil }

// A container that can write to its log directory cannot redirect the rotator.
func TestLogRoot_DoesNotFollowLinks(t *testing.T) {
	w := newWriter(t)
	root := w.root(t)
	secret := filepath.Join(t.TempDir(), "secret")
	require.NoError(t, os.WriteFile(secret, make([]byte, 1<<20), 0o600))
	require.NoError(t, os.Remove(w.path()))
	require.NoError(t, os.Symlink(secret, w.path()))
	size, err := root.size(logOf)
	require.NoError(t, err)
	assert.Zero(t, size, "a link is never long enough to rotate")

	require.NoError(t, os.Remove(w.path()))
	w.open()
	link := w.path() + ".20260101-000000.000000000"
	require.NoError(t, os.Symlink(secret, link))
	w.write(1)
	require.NoError(t, root.rotate(logOf, time.Now(), w.reopen))
	require.NoError(t, root.cleanup(t.Context(), logOf))
	assert.FileExists(t, secret)
	assert.False(t, exists(link+".gz"), "nothing is copied through it")

	require.NoError(t, os.RemoveAll(filepath.Dir(w.path())))
	require.NoError(t, os.Symlink(filepath.Dir(secret), filepath.Dir(w.path())))
	require.Error(t, root.rotate(logOf, time.Now(), w.reopen), "not out of the folder either")
}
