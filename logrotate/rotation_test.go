//go:build linux

package logrotate

import (
	"compress/gzip"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

const past = logOf + ".20260101-000000.000000000"

// put writes a file next to the log.
func (w *writer) put(t *testing.T, name, text string, mode os.FileMode) string {
	t.Helper()
	path := filepath.Join(w.dir, name)
	require.NoError(t, os.WriteFile(path, []byte(text), mode))
	require.NoError(t, os.Chmod(path, mode)) // whatever the umask is
	return path
}

func TestLogRoot_Size(t *testing.T) {
	w := newWriter(t)
	root := w.root(t)
	w.write(3)
	size, err := root.size(logOf)
	require.NoError(t, err)
	assert.EqualValues(t, 300, size)
	_, err = root.size("ns_web_u1/app/1.log")
	require.ErrorIs(t, err, errMissing)
	size, err = root.size("ns_web_u1/app")
	require.NoError(t, err)
	assert.Zero(t, size, "a directory is no log")
	_, err = root.size(logOf + "/0.log")
	require.Error(t, err)
	require.NotErrorIs(t, err, errMissing)
}

// Without its directory, a log can neither be rotated nor needs anything.
func TestLogRoot_MissingDirectory(t *testing.T) {
	w := newWriter(t)
	root := w.root(t)
	const log = "ns_none_u2/app/0.log"
	require.ErrorIs(t, root.rotate(log, time.Now(), w.reopen), fs.ErrNotExist)
	require.ErrorContains(t, root.rotate(log, time.Now(), w.reopen), "rotate log "+log)
	assert.Zero(t, w.reopens)
	require.NoError(t, root.cleanup(t.Context(), log))
	assert.False(t, root.needsReopen(log))
}

// A log that vanishes before it is renamed is not reopened: its container may have ended. If that
// still runs, the Rotator has it reopened later.
func TestLogRoot_RotateMissingLog(t *testing.T) {
	w := newWriter(t)
	root := w.root(t)
	require.NoError(t, os.Remove(w.path()))
	require.ErrorIs(t, root.rotate(logOf, time.Now(), w.reopen), fs.ErrNotExist)
	assert.Zero(t, w.reopens)
	assert.False(t, root.needsReopen(logOf), "nothing was rotated")
	w.put(t, past, "x", 0o600)
	assert.True(t, root.needsReopen(logOf))
	for _, day := range []string{"2", "3", "4"} {
		w.put(t, logOf+".2026010"+day+"-000000.000000000", "x", 0o600)
	}
	require.NoError(t, root.cleanup(t.Context(), logOf), "there is no duplicate name to look for")
	assert.NoFileExists(t, filepath.Join(w.dir, past))
}

// What cannot be removed prevents a rotation, because the disk would fill up.
func TestLogRoot_RotateNeedsRoom(t *testing.T) {
	w := newWriter(t)
	root := w.root(t)
	require.NoError(t, os.MkdirAll(filepath.Join(w.dir, past, "full"), 0o755))
	w.put(t, logOf+".20260102-000000.000000000", "x", 0o600)
	w.write(1)
	require.Error(t, root.rotate(logOf, time.Now(), w.reopen))
	assert.FileExists(t, w.path())
	assert.Zero(t, w.reopens)
}

// A cleanup compresses what it can, keeps the mode, and reports what it cannot.
func TestLogRoot_Cleanup(t *testing.T) {
	w := newWriter(t)
	root := w.root(t)
	root.maxFiles = 6
	old := w.put(t, past, "old lines\n", 0o640)
	w.put(t, logOf+".20260102-000000.000000000", "old lines\n", 0o600)
	stuck := w.put(t, logOf+".20260103-000000.000000000", "x", 0o600)
	require.NoError(t, os.Mkdir(stuck+unfinished, 0o755)) // removed as broken, unless it is not empty
	require.NoError(t, os.Mkdir(filepath.Join(stuck+unfinished, "full"), 0o755))
	w.put(t, logOf+".20260104-000000.000000000", "newest", 0o600)

	err := root.cleanup(t.Context(), logOf)
	require.ErrorContains(t, err, "remove rotated logs of "+logOf)
	assert.NoFileExists(t, old)
	assert.FileExists(t, stuck, "what could not be compressed is kept")
	info, err := os.Stat(old + compressed)
	require.NoError(t, err)
	assert.Equal(t, fs.FileMode(0o640), info.Mode().Perm())
	f, err := os.Open(old + compressed)
	require.NoError(t, err)
	defer f.Close()
	text, err := gzip.NewReader(f)
	require.NoError(t, err)
	lines, err := io.ReadAll(text)
	require.NoError(t, err)
	assert.Equal(t, "old lines\n", string(lines))
}

// A compression whose result cannot get its name keeps the original, and leaves nothing
// unfinished.
func TestLogRoot_CompressCannotRename(t *testing.T) {
	w := newWriter(t)
	root := w.root(t)
	old := w.put(t, past, "old lines\n", 0o640)
	require.NoError(t, os.MkdirAll(filepath.Join(old+compressed, "full"), 0o755))
	require.Error(t, root.compress(t.Context(), past))
	text, err := os.ReadFile(old)
	require.NoError(t, err)
	assert.Equal(t, "old lines\n", string(text))
	assert.NoFileExists(t, old+unfinished)
}

// A compression that is stopped leaves the original and nothing else.
func TestLogRoot_CompressStops(t *testing.T) {
	w := newWriter(t)
	root := w.root(t)
	old := w.put(t, past, "old lines\n", 0o600)
	stop := errors.New("stop")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(stop)
	require.ErrorIs(t, root.compress(ctx, past), stop)
	assert.FileExists(t, old)
	assert.NoFileExists(t, old+unfinished)
	assert.NoFileExists(t, old+compressed)
}

// What is no regular file, or does not exist any more, is not compressed.
func TestLogRoot_CompressSkips(t *testing.T) {
	w := newWriter(t)
	root := w.root(t)
	require.NoError(t, root.compress(t.Context(), past))
	require.NoError(t, os.Mkdir(filepath.Join(w.dir, past), 0o755))
	require.NoError(t, root.compress(t.Context(), past))
	assert.NoFileExists(t, filepath.Join(w.dir, past+compressed))
	require.Error(t, root.compress(t.Context(), logOf+"/x"), "an error that is not about existence is reported")
}

// A log's own name is not a duplicate of another container's.
func TestLogRoot_RemovesDuplicateNameOnly(t *testing.T) {
	w := newWriter(t)
	root := w.root(t)
	w.write(1)
	for _, name := range []string{"other", past} {
		if name == past {
			name = filepath.Base(past)
		}
		require.NoError(t, os.Link(w.path(), filepath.Join(filepath.Dir(w.path()), name)))
	}
	names, err := root.removeDuplicateName(logOf, []string{"0.log", "other", filepath.Base(past), "1.log"})
	require.NoError(t, err)
	assert.Equal(t, []string{"0.log", "other", "1.log"}, names)
	assert.NoFileExists(t, filepath.Join(w.dir, past))
	assert.FileExists(t, filepath.Join(filepath.Dir(w.path()), "other"))

	names, err = root.removeDuplicateName(logOf, []string{filepath.Base(past)})
	require.NoError(t, err)
	assert.Equal(t, []string{filepath.Base(past)}, names, "a name that has vanished is no duplicate")
	_, err = root.removeDuplicateName(logOf+"/x", nil)
	require.Error(t, err)
}

// What is no directory cannot be cleaned up.
func TestLogRoot_CleanupReturnsErrors(t *testing.T) {
	w := newWriter(t)
	root := w.root(t)
	require.ErrorContains(t, root.cleanup(t.Context(), logOf+"/x"), "remove rotated logs of")
}

// A duplicate name that cannot be removed prevents everything else: lines would be read
// twice.
func TestLogRoot_ReadOnlyDirectory(t *testing.T) {
	w := newWriter(t)
	root := w.root(t)
	w.write(1)
	require.NoError(t, os.Link(w.path(), filepath.Join(w.dir, past)))
	dir := filepath.Dir(w.path())
	if err := unix.Mount(dir, dir, "", unix.MS_BIND, ""); err != nil {
		t.Skip("needs root: ", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	require.NoError(t, unix.Mount("", dir, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""))
	require.ErrorIs(t, root.cleanup(t.Context(), logOf), unix.EROFS)
	require.ErrorIs(t, root.rotate(logOf, time.Now(), w.reopen), unix.EROFS)
	assert.Zero(t, w.reopens)
}

// What a container puts in place of a rotated log is neither waited for nor read.
func TestLogRoot_PackReadsRegularFilesOnly(t *testing.T) {
	w := newWriter(t)
	root := w.root(t)
	require.NoError(t, unix.Mkfifo(filepath.Join(w.dir, past), 0o600))
	require.NoError(t, os.MkdirAll(filepath.Join(w.dir, "ns_other_u2/app"), 0o700))
	w.put(t, "ns_other_u2/app/0.log", "of another pod", 0o600)
	link := logOf + ".20260102-000000.000000000"
	require.NoError(t, os.Symlink("../../ns_other_u2/app/0.log", filepath.Join(w.dir, link)))
	for _, name := range []string{past, link} {
		packed := make(chan error, 1)
		go func() { packed <- root.pack(t.Context(), name, name+unfinished, 0o600) }()
		select {
		case err := <-packed:
			require.ErrorContains(t, err, "not a regular file", name)
		case <-time.After(time.Minute):
			require.FailNow(t, "it waits for a writer")
		}
		assert.NoFileExists(t, filepath.Join(w.dir, name+unfinished))
	}
}

// Compression leaves no file open, and creates none without an original.
func TestLogRoot_PackClosesFiles(t *testing.T) {
	w := newWriter(t)
	root := w.root(t)
	require.ErrorIs(t, root.pack(t.Context(), past, past+unfinished, 0o600), fs.ErrNotExist)
	assert.NoFileExists(t, filepath.Join(w.dir, past+unfinished))
	w.put(t, past, "x", 0o600)
	require.NoError(t, root.compress(t.Context(), past))
	fds, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	for _, fd := range fds {
		target, _ := os.Readlink(filepath.Join("/proc/self/fd", fd.Name()))
		assert.NotContains(t, target, filepath.Base(past))
	}
}
