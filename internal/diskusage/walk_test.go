//go:build linux

package diskusage

import (
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	goruntime "runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sublet-dev/agent/internal/systest"
	"github.com/sublet-dev/agent/runtime"
)

// naive is a simple implementation to compare with.
func naive(t *testing.T, dir string) (u runtime.DiskUsage) {
	t.Helper()
	counted := map[uint64]bool{}
	require.NoError(t, filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		var st unix.Stat_t
		if err == nil {
			err = unix.Lstat(path, &st)
		}
		if err == nil && !counted[st.Ino] {
			counted[st.Ino] = true
			u.Bytes += uint64(st.Blocks) * 512
			u.Inodes++
		}
		return err
	}))
	return u
}

// stepwise runs a walk step by step and checks its result so far after each.
func stepwise(t *testing.T, w *Walk) runtime.DiskUsage {
	t.Helper()
	over, cancel := context.WithCancel(t.Context())
	cancel()
	maxOpen := walkOpen + 1
	if w.names > walkNames {
		maxOpen += walkPartial
	}
	for len(w.dirs) > 0 {
		before := w.SoFar()
		require.False(t, w.Run(over), "it is left off")
		require.Equal(t, before, w.SoFar())
		w.Step()
		require.GreaterOrEqual(t, w.SoFar().Bytes, before.Bytes)
		require.GreaterOrEqual(t, w.SoFar().Inodes, before.Inodes)
		open := 0
		for i := range w.dirs {
			if w.dirs[i].file != nil {
				open++
			}
		}
		require.LessOrEqual(t, open, maxOpen)
	}
	require.True(t, w.Run(over))
	return w.SoFar()
}

// grow creates a random tree of at most that many files.
func grow(t *testing.T, rng *rand.Rand, dir string, most *int) {
	t.Helper()
	for i := range rng.IntN(12) {
		if *most--; *most <= 0 {
			return
		}
		name := filepath.Join(dir, fmt.Sprint(i))
		switch k := rng.IntN(10); {
		case (k < 3 || i == 1) && strings.Count(name, "/") < walkOpen+walkPartial:
			require.NoError(t, os.Mkdir(name, 0o700))
			grow(t, rng, name, most)
		case k < 4:
			require.NoError(t, os.Symlink([]string{"/", "..", "0", "nowhere"}[rng.IntN(4)], name))
		case k < 5 && i > 0:
			_ = os.Link(filepath.Join(dir, "0"), name)
		default:
			require.NoError(t, os.WriteFile(name, make([]byte, rng.IntN(20000)), 0o600))
		}
	}
}

// A walk has the same result as the simple implementation, at once and in steps.
func TestWalk_RandomTrees(t *testing.T) {
	for seed := range uint64(8) {
		dir := t.TempDir()
		most := 200
		grow(t, rand.New(rand.NewPCG(seed, 1)), dir, &most)
		want := naive(t, dir)
		w := New(dir)
		require.True(t, w.Run(t.Context()))
		assert.Equal(t, want, w.SoFar(), "seed %d", seed)
		assert.Equal(t, want, stepwise(t, New(dir)), "seed %d", seed)
		assert.Equal(t, want, stepwise(t, withoutRoom(New(dir))), "seed %d", seed)
		assert.NoError(t, w.err)
	}
}

// withoutRoom returns w with as many names as it may have.
func withoutRoom(w *Walk) *Walk {
	w.names = walkNames + 1
	return w
}

// Very many subdirectories are counted with few of their names in memory.
func TestWalk_ManySubdirectories(t *testing.T) {
	dir := t.TempDir()
	for i := range 5_000 {
		at := filepath.Join(dir, fmt.Sprintf("%0250d", i))
		require.NoError(t, os.Mkdir(at, 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(at, "file"), nil, 0o600))
	}
	w := New(dir)
	for peak := 0; !w.Done(); w.Step() {
		peak = max(peak, w.names)
		require.LessOrEqual(t, peak, walkNames+walkBatch*256)
	}
	require.NoError(t, w.Err())
	assert.Zero(t, w.names)
	assert.Equal(t, uint64(10_001), w.SoFar().Inodes)
}

// There is no depth limit: paths longer than the kernel accepts are counted, with few
// directories open.
func TestWalk_DeepTree(t *testing.T) {
	dir := t.TempDir()
	const levels = 700
	at, err := unix.Open(dir, openDir, 0)
	require.NoError(t, err)
	name := strings.Repeat("d", 20)
	for range levels {
		require.NoError(t, unix.Mkdirat(at, name, 0o700))
		require.NoError(t, unix.Mkdirat(at, "beside", 0o700))
		next, err := unix.Openat(at, name, openDir, 0)
		require.NoError(t, err)
		require.NoError(t, unix.Close(at))
		at = next
	}
	f, err := unix.Openat(at, "file", unix.O_CREAT|unix.O_WRONLY, 0o600)
	require.NoError(t, err)
	_, err = unix.Write(f, make([]byte, 100_000))
	require.NoError(t, err)
	require.NoError(t, unix.Close(f))
	require.NoError(t, unix.Close(at))

	for _, u := range []runtime.DiskUsage{allOf(t, dir), stepwise(t, New(dir))} {
		assert.Equal(t, uint64(2*levels+2), u.Inodes)
		assert.GreaterOrEqual(t, u.Bytes, uint64(100_000))
	}
	w := withoutRoom(New(dir))
	assert.Greater(t, stepwise(t, w).Inodes, uint64(walkOpen+walkPartial), "what lies nearer to the root is counted")
	assert.ErrorIs(t, w.Err(), errTooMany)
}

// Names that were used take no memory, however deep the walk is then.
func TestWalk_ForgetsUsedNames(t *testing.T) {
	dir := t.TempDir()
	const levels = 20
	for at := range levels {
		require.NoError(t, os.MkdirAll(filepath.Join(dir, strings.Repeat("d/", at), "last"), 0o700))
	}
	// Of directories that are not there any more.
	names := bytes.Repeat([]byte(strings.Repeat("x", 255)+"\x00"), walkNames/256)
	before := heap()
	w := New(dir)
	for len(w.dirs) < levels {
		d := &w.dirs[len(w.dirs)-1]
		for !d.read {
			w.readSome(d)
		}
		d.rest = append(append(bytes.Clone(names), "d\x00"...), "last\x00"...)
		w.names += len(names)
		for depth := len(w.dirs); len(w.dirs) == depth; {
			w.Step()
		}
	}
	assert.Less(t, heap()-before, int64(walkNames), "of names for %d MiB", levels)
	require.True(t, w.Run(t.Context()))
	assert.Zero(t, w.names)
	assert.Equal(t, uint64(2*levels), w.SoFar().Inodes)
}

// What lies too deep is not counted. What lies beside is.
func TestWalk_TooManyLevels(t *testing.T) {
	const levels, most = 20, 8
	dir := t.TempDir()
	for at := range levels {
		require.NoError(t, os.MkdirAll(filepath.Join(dir, strings.Repeat("d/", at), "beside"), 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(dir, strings.Repeat("d/", at), "beside", "file"), nil, 0o600))
	}
	w := New(dir)
	w.levels = most
	for ; !w.Done(); w.Step() {
		require.LessOrEqual(t, len(w.dirs), most)
	}
	// Each of those that are read has d and beside, and each but the last one the file.
	assert.Equal(t, uint64(1+2*most+most-1), w.SoFar().Inodes)
	assert.ErrorIs(t, w.Err(), errTooMany)
	assert.Zero(t, w.names)
}

func allOf(t *testing.T, dir string) runtime.DiskUsage {
	t.Helper()
	w := New(dir)
	require.True(t, w.Run(t.Context()))
	require.NoError(t, w.err)
	return w.SoFar()
}

// If the current directory is moved away, the walk continues nearer to the root, and
// nothing outside is counted.
func TestWalk_TreeThatIsMoved(t *testing.T) {
	dir, elsewhere := t.TempDir(), t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(elsewhere, "big"), make([]byte, 1<<20), 0o600))
	at := dir
	for i := range walkOpen + 5 {
		require.NoError(t, os.WriteFile(filepath.Join(at, "file"), make([]byte, 4096), 0o600))
		require.NoError(t, os.Mkdir(filepath.Join(at, "beside"), 0o700))
		at = filepath.Join(at, fmt.Sprint(i))
		require.NoError(t, os.Mkdir(at, 0o700))
	}
	w := New(dir)
	for len(w.dirs) < walkOpen+5 {
		d := &w.dirs[len(w.dirs)-1]
		for !d.read {
			w.readSome(d)
		}
		// The directory with the subdirectory comes first.
		if len(d.rest) > 0 {
			lead := fmt.Sprint(len(w.dirs) - 1)
			d.rest = []byte(lead + "\x00" + strings.ReplaceAll(string(d.rest), lead+"\x00", ""))
		}
		w.Step()
	}
	deep := filepath.Join(dir, "0/1/2/3/4/5/6/7/8/9/10")
	require.NoError(t, os.Rename(deep, filepath.Join(elsewhere, "moved")))
	require.True(t, w.Run(t.Context()))
	assert.LessOrEqual(t, w.SoFar().Bytes, naive(t, dir).Bytes+naive(t, elsewhere).Bytes-(1<<20))
	assert.GreaterOrEqual(t, w.SoFar().Inodes, uint64(3*walkOpen), "what lies nearer to the root is counted")
	assert.NoError(t, w.err)
}

// Mounts below the path are not counted, and a path that is a file is counted alone.
func TestWalk_StaysOnItsFileSystem(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	require.NoError(t, os.WriteFile(file, make([]byte, 50_000), 0o600))
	require.NoError(t, os.Symlink("/", filepath.Join(dir, "link")))
	assert.Equal(t, uint64(1), allOf(t, file).Inodes)
	assert.GreaterOrEqual(t, allOf(t, file).Bytes, uint64(50_000))
	assert.Equal(t, uint64(1), allOf(t, filepath.Join(dir, "link")).Inodes, "a link is not followed")
	assert.Zero(t, allOf(t, filepath.Join(dir, "none")))
	if os.Getuid() != 0 {
		t.Skip("needs root to mount a file system")
	}
	mount := filepath.Join(dir, "mount")
	require.NoError(t, os.Mkdir(mount, 0o700))
	before := allOf(t, dir)
	require.NoError(t, unix.Mount("tmpfs", mount, "tmpfs", 0, "size=1m"))
	t.Cleanup(func() { assert.NoError(t, unix.Unmount(mount, unix.MNT_DETACH)) })
	require.NoError(t, os.WriteFile(filepath.Join(mount, "file"), make([]byte, 50_000), 0o600))
	assert.Equal(t, before.Inodes-1, allOf(t, dir).Inodes, "the mount point is hidden")
}

// A file system below the path that does not answer is not waited for: that of a pod would keep all others from being counted.
func TestWalk_MountThatHangs(t *testing.T) {
	dir := t.TempDir()
	mount := filepath.Join(dir, "mount")
	require.NoError(t, os.Mkdir(mount, 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "file"), make([]byte, 50_000), 0o600))
	before := allOf(t, dir)
	systest.MountHung(t, mount)
	counted := make(chan *Walk, 1)
	go func() {
		w := New(dir)
		w.Run(context.Background())
		counted <- w
	}()
	select {
	case w := <-counted:
		require.NoError(t, w.Err())
		assert.Equal(t, before.Inodes-1, w.SoFar().Inodes, "the mount point is hidden")
	case <-time.After(time.Minute):
		t.Fatal("the walk waits for the mount")
	}
}

// Of very many files with several names, not all are recorded: beyond that each name
// counts for its part, which gives the same sum.
func TestWalk_ManyLinks(t *testing.T) {
	dir := t.TempDir()
	for i := range 10 {
		require.NoError(t, os.WriteFile(filepath.Join(dir, fmt.Sprint(i)), make([]byte, 8192), 0o600))
		require.NoError(t, os.Link(filepath.Join(dir, fmt.Sprint(i)), filepath.Join(dir, fmt.Sprint(i, "again"))))
	}
	want := allOf(t, dir)
	assert.Equal(t, uint64(11), want.Inodes)
	w := New(dir)
	for i := range uint64(walkLinked) {
		w.counted[fileID{1 << 60, i}] = struct{}{}
	}
	require.True(t, w.Run(t.Context()))
	assert.Equal(t, want, w.SoFar())
	assert.Len(t, w.counted, walkLinked)
}

// heap returns the bytes that are in use.
func heap() int64 {
	goruntime.GC()
	var m goruntime.MemStats
	goruntime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// A flat directory of very many files takes little memory.
func TestWalk_FlatDirectory(t *testing.T) {
	if testing.Short() {
		t.Skip("slow: makes 10,000 files")
	}
	dir := t.TempDir()
	for i := range 10_000 {
		require.NoError(t, os.Symlink("x", filepath.Join(dir, fmt.Sprint(i))))
	}
	before := heap()
	w := New(dir)
	for i := 0; len(w.dirs) > 0 && i < 30; i++ {
		w.readSome(&w.dirs[0])
	}
	require.Greater(t, w.SoFar().Inodes, uint64(7_000))
	assert.Less(t, heap()-before, int64(512<<10), "of most of them so far")
	require.True(t, w.Run(t.Context()))
	assert.Equal(t, uint64(10_001), w.SoFar().Inodes)
}

// An unreadable directory is left out and reported, and the rest is counted.
func TestWalk_Errors(t *testing.T) {
	w := New(t.TempDir())
	for _, err := range []error{nil, fs.ErrNotExist, fs.ErrPermission, unix.ELOOP, unix.ENOTDIR} {
		w.fail("read", err)
	}
	assert.NoError(t, w.err)
	w.fail("read", unix.EIO)
	w.fail("read", unix.EBADF)
	assert.ErrorIs(t, w.err, unix.EIO, "the first one")
	assert.ErrorContains(t, w.err, w.path)
	w.Close()
	assert.True(t, w.Run(t.Context()))
}
