package stats

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// Kernel files are read completely, whatever their size up to a bound.
func TestReader_Number(t *testing.T) {
	padding := strings.Repeat(" ", 20<<10)
	r := newReader(fstest.MapFS{
		"plain": {Data: []byte("17\n")}, "max": {Data: []byte("max\n")}, "text": {Data: []byte("seventeen\n")},
		"long": {Data: []byte(padding + "42")}, "huge": {Data: make([]byte, maxFile+1)}, "directory/file": {},
	})
	for name, want := range map[string]uint64{"plain": 17, "max": 1<<64 - 1, "long": 42} {
		n, err := r.number(name)
		require.NoError(t, err, name)
		assert.Equal(t, want, n, name)
	}
	for name, want := range map[string]string{
		"text": "text: ", "huge": "is larger than 65536 bytes", "missing": "file does not exist", "directory": "directory",
	} {
		_, err := r.number(name)
		assert.ErrorContains(t, err, want, name)
	}
}

// A table has one name and one number per line, with any white space; other lines are
// ignored.
func TestReader_Table(t *testing.T) {
	r := newReader(fstest.MapFS{"stat": {Data: []byte("a 1\nb:\t2 kB\nc  \t 3\nd\ne x\nf 99999999999999999999\ng 1x\nh 7")}})
	got := make(map[string]uint64)
	require.NoError(t, r.table("stat", func(key []byte, n uint64) { got[string(key)] = n }))
	assert.Equal(t, map[string]uint64{"a": 1, "b": 2, "c": 3, "h": 7}, got)
	require.ErrorIs(t, r.table("missing", nil), fs.ErrNotExist)
}

// openCounter counts the open files of a real directory.
type openCounter struct {
	fs.FS
	opened []*os.File
}

func (o *openCounter) Open(name string) (fs.File, error) {
	f, err := o.FS.Open(name)
	if file, ok := f.(*os.File); ok {
		o.opened = append(o.opened, file)
	}
	return f, err
}

// isOpen reports whether a file was not closed.
func isOpen(f *os.File) bool {
	_, err := f.Stat()
	return !errors.Is(err, os.ErrClosed)
}

// Kernel files stay open between readings, and are closed when they were not read between
// two sweeps, when they cannot be read any more, and when there are too many.
func TestReader_KeepsFilesOpen(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"a", "b"} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte("1\n"), 0o600))
	}
	o := &openCounter{FS: os.DirFS(dir)}
	r := newReader(o)
	read := func(name string) {
		t.Helper()
		n, err := r.number(name)
		require.NoError(t, err)
		require.Equal(t, uint64(1), n)
	}
	for range 4 {
		read("a")
		r.kept.sweep()
	}
	require.Len(t, o.opened, 1, "opened once")
	r.kept.sweep()
	assert.True(t, isOpen(o.opened[0]))
	r.kept.sweep()
	assert.False(t, isOpen(o.opened[0]), "not read between two sweeps")

	read("a")
	r.kept.maxFiles = 1
	read("b")
	require.Len(t, o.opened, 3)
	assert.True(t, isOpen(o.opened[1]))
	assert.False(t, isOpen(o.opened[2]), "too many files")
}

// A file that does not fit or cannot be read is opened again by the caller.
func TestFDCache_Read(t *testing.T) {
	dir := t.TempDir()
	open := func(name string, size int) *os.File {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, make([]byte, size), 0o600))
		f, err := os.Open(path)
		require.NoError(t, err)
		return f
	}
	k := newFDCache()
	small, large := open("small", 100), open("large", maxSingleRead+100)
	require.True(t, k.keep("small", small))
	require.True(t, k.keep("large", large))
	buf := make([]byte, 8<<10)
	n, ok := k.read("small", buf)
	assert.True(t, ok)
	assert.Equal(t, 100, n)
	n, ok = k.read("large", buf)
	assert.True(t, ok)
	assert.Equal(t, maxSingleRead+100, n)
	_, ok = k.read("large", buf[:maxSingleRead])
	assert.False(t, ok, "it may continue")
	_, ok = k.read("missing", buf)
	assert.False(t, ok)

	directory, err := os.Open(dir)
	require.NoError(t, err)
	require.True(t, k.keep("directory", directory))
	_, ok = k.read("directory", buf)
	assert.False(t, ok, "a directory cannot be read")
	k.sweep()
	k.sweep()
	assert.False(t, isOpen(directory), "closed by the next sweep that closes files")
	assert.True(t, isOpen(small))
	k.sweep()
	assert.False(t, isOpen(small))

	first, second := open("twice", 1), open("twice", 1)
	require.True(t, k.keep("twice", first))
	require.True(t, k.keep("twice", second))
	assert.False(t, isOpen(first), "replaced")
	assert.True(t, isOpen(second))
	mapped, err := fstest.MapFS{"m": {}}.Open("m")
	require.NoError(t, err)
	assert.False(t, k.keep("m", mapped), "not a real file")

	var limit unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &limit))
	assert.Equal(t, fileLimit(uint64(limit.Cur)), k.maxFiles) //nolint:unconvert // its type differs by system
}

// A cgroup without one of its files has no usage, and one without a limit no capacity.
func TestGroups_IncompleteCgroup(t *testing.T) {
	now := time.Now()
	v2 := openGroups(fstest.MapFS{
		"cgroup.controllers": {}, "a/memory.current": {Data: []byte("10")}, "a/pids.current": {Data: []byte("2")},
		"b/memory.current": {Data: []byte("10")}, "b/memory.stat": {}, "b/memory.max": {Data: []byte("4611686018427387904")},
		"b/pids.current": {Data: []byte("2")}, "b/pids.max": {Data: []byte("4611686018427387904")},
	})
	for _, read := range []func() error{
		func() error { _, err := v2.memoryOf("/a", now); return err },
		func() error { _, err := v2.boundOf("/none", now); return err },
		func() error { _, err := v2.cpuOf("/a", now); return err },
		func() error { _, err := v2.boundPidsOf("/none", now); return err },
	} {
		require.ErrorIs(t, read(), fs.ErrNotExist)
	}
	m, err := v2.boundOf("/b", now)
	require.NoError(t, err)
	assert.Zero(t, m.Capacity, "a limit of 4 EiB is none")
	p, err := v2.boundPidsOf("/b", now)
	require.NoError(t, err)
	assert.Zero(t, p.Max)
	p, err = v2.boundPidsOf("/a", now)
	require.NoError(t, err)
	assert.Zero(t, p.Max, "no limit file")

	v1 := openGroups(fstest.MapFS{"cpu,cpuacct/a/cpuacct.usage": {Data: []byte("77")}})
	c, err := v1.cpuOf("/a", now)
	require.NoError(t, err)
	assert.Equal(t, uint64(77), c.UsageCoreNanoSeconds, "controllers that are mounted together")
	_, err = v1.cpuOf("/none", now)
	require.ErrorIs(t, err, fs.ErrNotExist)
}

// Files of the kernel with an unexpected content are errors.
func TestMachine_InvalidFiles(t *testing.T) {
	now := time.Now()
	r := newReader(fstest.MapFS{
		"loadavg": {Data: []byte("0.1 0.2 0.3\n")}, "sys/kernel/pid_max": {Data: []byte("100")},
		"avg10": {Data: []byte("some avg10=x\n")}, "empty": {Data: []byte("\n")}, "meminfo": {Data: []byte("MemFree: 1 kB\n")},
	})
	_, err := machinePids(r, now)
	require.ErrorContains(t, err, "too few fields")
	_, err = r.pressure("avg10", now)
	require.ErrorContains(t, err, `"avg10=x"`)
	_, err = r.pressure("missing", now)
	require.ErrorIs(t, err, fs.ErrNotExist)
	_, err = r.pressure("empty", now)
	require.NoError(t, err)
	_, err = machineMemory(r, now)
	require.ErrorContains(t, err, "no MemTotal")

	m, err := machineMemory(newReader(fstest.MapFS{"meminfo": {Data: []byte("MemTotal: 9 kB\nAnonPages: 3 kB\n")}}), now)
	require.NoError(t, err)
	assert.Equal(t, uint64(3<<10), m.RSS)
}

// The values of a file system are consistent, and a missing path is named.
func TestStatfs(t *testing.T) {
	u, err := Statfs(t.TempDir())
	require.NoError(t, err)
	assert.NotZero(t, u.CapacityBytes)
	assert.LessOrEqual(t, u.UsedBytes, u.CapacityBytes)
	assert.LessOrEqual(t, u.InodesUsed, u.Inodes)
	_, err = Statfs("/nonexistent")
	require.ErrorContains(t, err, "statfs /nonexistent: ")
	require.ErrorIs(t, err, fs.ErrNotExist)
}
