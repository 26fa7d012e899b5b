//go:build linux

package mounts

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sublet-dev/agent/internal/systest"
)

const sample = `36 35 98:0 / /root/pods rw shared:1 - ext4 /dev/sda rw
37 36 0:5 / /root/pods/u/volumes/x\040y\134z rw - tmpfs seclabel rw,context=seclabel
38 36 0:6 /a /root/pods/uu rw - ext4 /dev/sda rw
nonsense
39 36 0:6 / /root/pods/u rw master:1 - xfs /dev/sd\040b rw,seclabel,noquota
40 36 0:7 / /root/pods/u/ro ro,nosuid - ext4 /dev/sdc rw
41 36 0:7 / /root/pods/u/ro rw - ext4 /dev/sdc ro
`

func TestParse(t *testing.T) {
	got, err := parse(strings.NewReader(sample), "/root/pods/u")
	require.NoError(t, err)
	assert.Equal(t, []Point{
		{Path: `/root/pods/u/volumes/x y\z`, FSType: "tmpfs", Source: "seclabel"},
		{Path: "/root/pods/u", FSType: "xfs", Source: "/dev/sd b", HasLabels: true},
		{Path: "/root/pods/u/ro", FSType: "ext4", Source: "/dev/sdc", ReadOnly: true},
		{Path: "/root/pods/u/ro", FSType: "ext4", Source: "/dev/sdc", ReadOnly: true},
	}, got)
	got, err = parse(strings.NewReader(sample), "/")
	require.NoError(t, err)
	assert.Len(t, got, 6, "all is below the root")
	_, err = parse(strings.NewReader(strings.Repeat("x", 2<<20)), "/")
	assert.Error(t, err)
}

// Whatever a path is like, it is found as the kernel writes it.
func FuzzParse(f *testing.F) {
	f.Add("/root/pods", "volumes/a b\n\\c", "tmpfs")
	f.Add("/", "x", "ext4")
	f.Fuzz(func(t *testing.T, dir, rel, fsType string) {
		if _, err := parse(strings.NewReader(dir+rel+fsType), dir); err != nil && len(dir+rel+fsType) < maxLine {
			t.Fatal(err)
		}
		dir = filepath.Clean("/" + dir)
		path := filepath.Join(dir, rel)
		if strings.ContainsAny(fsType, " \n\r") || strings.Contains(path, "\x00") || path != dir && !strings.HasPrefix(path, strings.TrimSuffix(dir, "/")+"/") {
			return
		}
		line := fmt.Sprintf("36 35 98:0 / %s rw - %s none rw\n", escape(path), fsType)
		if len(line) > maxLine/2 {
			return
		}
		got, err := parse(strings.NewReader(line), dir)
		require.NoError(t, err)
		require.Equal(t, []Point{{Path: path, FSType: fsType, Source: "none"}}, got)
	})
}

// escape writes a path as the kernel does; of other blanks a parser must not care.
func escape(path string) string {
	var b strings.Builder
	for i := range len(path) {
		if c := path[i]; c <= ' ' || c == '\\' || c == '#' || c >= 0x7f {
			fmt.Fprintf(&b, `\%03o`, c)
		} else {
			b.WriteByte(c)
		}
	}
	return b.String()
}

// bind mounts dir on at, until the test ends.
func bind(t *testing.T, dir, at string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("mounting needs root")
	}
	err := unix.Mount(dir, at, "", unix.MS_BIND, "")
	if errors.Is(err, unix.EPERM) {
		t.Skip("this container may not mount")
	}
	require.NoError(t, err)
	t.Cleanup(func() { _ = unix.Unmount(at, unix.MNT_DETACH) })
}

// tree creates a directory with a blank in its path, and files in it.
func tree(t *testing.T) (dir, outside string) {
	t.Helper()
	dir, outside = filepath.Join(t.TempDir(), "a b"), t.TempDir()
	require.NoError(t, os.WriteFile(outside+"/precious", nil, 0o644))
	for _, d := range []string{"pod/deep/mount", "pod/w/x/y", "pod/none"} {
		require.NoError(t, os.MkdirAll(filepath.Join(dir, d), 0o755))
	}
	require.NoError(t, os.WriteFile(dir+"/pod/w/x/file", nil, 0o644))
	require.NoError(t, os.Symlink(outside, dir+"/pod/link"))
	return dir, outside
}

func TestIsRoot(t *testing.T) {
	dir, outside := tree(t)
	at := dir + "/pod/deep/mount"
	bind(t, outside, at)
	for path, want := range map[string]bool{at: true, dir + "/pod/deep": false, dir + "/pod/link": false, dir + "/nowhere": false, "/proc": true} {
		is, known, err := IsRoot(path)
		require.NoError(t, err)
		if !known {
			t.Skip("this kernel does not tell")
		}
		assert.Equal(t, want, is, path)
	}
	require.NoError(t, os.Symlink(at, dir+"/to-mount"))
	is, _, err := IsRoot(dir + "/to-mount")
	require.NoError(t, err)
	assert.False(t, is, "a link is no mount")
}

// A file system that does not answer is not waited for.
func TestIsRoot_MountThatHangs(t *testing.T) {
	dir := t.TempDir()
	at := filepath.Join(dir, "mount")
	require.NoError(t, os.Mkdir(at, 0o700))
	systest.MountHung(t, at)
	results := make(chan map[string]bool, 1)
	go func() {
		got := map[string]bool{}
		for _, path := range []string{at, dir, filepath.Join(dir, "none")} {
			got[path], _, _ = IsRoot(path)
		}
		results <- got
	}()
	select {
	case got := <-results:
		assert.Equal(t, map[string]bool{at: true, dir: false, filepath.Join(dir, "none"): false}, got)
	case <-time.After(time.Minute):
		t.Fatal("it waits for the mount")
	}
}

// What a pod has mounted in its volume may never answer, and keeps no other file from being removed.
func TestRemove_MountThatHangs(t *testing.T) {
	dir := t.TempDir()
	at := filepath.Join(dir, "pod", "mount")
	require.NoError(t, os.MkdirAll(at, 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "pod", "file"), nil, 0o600))
	systest.MountHung(t, at)
	removed := make(chan error, 1)
	go func() { removed <- Remove(context.WithoutCancel(t.Context()), dir, "pod") }()
	select {
	case err := <-removed:
		require.ErrorIs(t, err, ErrMounted)
		assert.NoFileExists(t, filepath.Join(dir, "pod", "file"))
	case <-time.After(time.Minute):
		t.Fatal("it waits for the mount")
	}
}

// Mounts stay with their content and everything else is removed, also in a directory
// with a blank in its path and through a symbolic link to it.
func TestRemove_LeavesMounts(t *testing.T) {
	for _, kernel := range []string{"that tells folder by folder", "that does not"} {
		t.Run(kernel, func(t *testing.T) {
			dir, outside := tree(t)
			at := dir + "/pod/deep/mount"
			bind(t, outside, at)
			remove := func(dir string) error {
				top, err := unix.Open(dir, unix.O_DIRECTORY, 0)
				require.NoError(t, err)
				defer func() { _ = unix.Close(top) }()
				r := remover{ctx: t.Context(), top: dir, isRoot: func(int, string) (bool, bool, error) { return false, false, nil }}
				r.remove(top, "pod")
				return errors.Join(r.errs...)
			}
			if kernel == "that tells folder by folder" {
				remove = func(dir string) error { return Remove(t.Context(), dir, "pod") }
			}
			link := filepath.Join(t.TempDir(), "link")
			require.NoError(t, os.Symlink(dir, link))
			err := remove(link)
			require.ErrorIs(t, err, ErrMounted)
			assert.ErrorContains(t, err, "pod/deep/mount")
			assert.FileExists(t, outside+"/precious")
			assert.NoDirExists(t, dir+"/pod/w")
			assert.NoFileExists(t, dir+"/pod/link")

			require.NoError(t, unix.Unmount(at, 0))
			require.NoError(t, remove(link))
			assert.NoDirExists(t, dir+"/pod")
			assert.FileExists(t, outside+"/precious")
		})
	}
}

// A file can be mounted on as well.
func TestRemoveSparesMountedFiles(t *testing.T) {
	dir, outside := tree(t)
	bind(t, outside+"/precious", dir+"/pod/w/x/file")
	err := Remove(t.Context(), dir, "pod")
	require.ErrorIs(t, err, ErrMounted)
	assert.FileExists(t, outside+"/precious")
	assert.FileExists(t, dir+"/pod/w/x/file")
	assert.NoDirExists(t, dir+"/pod/deep")
}

func TestRemoveOfWhatIsNotThere(t *testing.T) {
	dir, outside := tree(t)
	require.NoError(t, Remove(t.Context(), dir, "nothing", "pod", "pod"))
	assert.NoDirExists(t, dir+"/pod")
	require.NoError(t, Remove(t.Context(), dir+"/nowhere", "x"))
	assert.FileExists(t, outside+"/precious")

	require.NoError(t, os.WriteFile(dir+"/file", nil, 0o644))
	require.Error(t, Remove(t.Context(), dir+"/file", "x"), "no folder")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, Remove(ctx, dir, "file"), context.Canceled)
	assert.FileExists(t, dir+"/file")
}

// nest creates nested directories with files in each, deeper than the limit for paths, as
// a container can.
func nest(t *testing.T, at string, levels int, name string, files ...string) {
	t.Helper()
	fd, err := unix.Open(at, unix.O_PATH|unix.O_DIRECTORY, 0)
	require.NoError(t, err)
	defer func() { _ = unix.Close(fd) }()
	for i := range levels {
		if err := unix.Mkdirat(fd, name, 0o755); err != nil {
			t.Skipf("level %d: %v", i, err)
		}
		next, err := unix.Openat(fd, name, unix.O_PATH|unix.O_DIRECTORY, 0)
		require.NoError(t, err)
		for _, f := range files {
			require.NoError(t, unix.Mknodat(next, f, unix.S_IFREG|0o600, 0))
		}
		_ = unix.Close(fd)
		fd = next
	}
}

// memoryDir is in memory if it can be: large trees take long on a disk.
func memoryDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "mounts-") //nolint:usetesting // the default is a disk
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	return dir
}

// remains fails if something is left in dir.
func remains(t *testing.T, dir string) {
	t.Helper()
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	assert.Empty(t, left)
}

// OW-3: a container cannot make a tree that is too deep, too wide or whose paths are too
// long for its pod to be removed, nor one that costs the agent more than others.
func TestRemoveHasNoLimits(t *testing.T) {
	for name, make := range map[string]func(t *testing.T, dir string){
		"one level more than are held open": func(t *testing.T, dir string) { nest(t, dir, maxRemoveDepth+1, "d", "a") },
		"700 levels":                        func(t *testing.T, dir string) { nest(t, dir, 700, "d", "a", "z") },
		"20000 levels":                      func(t *testing.T, dir string) { nest(t, dir, 20_000, "d") },
		"paths of 500 KiB":                  func(t *testing.T, dir string) { nest(t, dir, 2000, strings.Repeat("d", 250)) },
		"many deep ones": func(t *testing.T, dir string) {
			for i := range 20 {
				sub := filepath.Join(dir, fmt.Sprint(i))
				require.NoError(t, os.Mkdir(sub, 0o755))
				nest(t, sub, 200, "d", "a", "z")
			}
		},
		"more names than are read at once": func(t *testing.T, dir string) {
			for i := range 3*removeBatch + 1 {
				require.NoError(t, os.WriteFile(filepath.Join(dir, fmt.Sprint(i)), nil, 0o600))
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := memoryDir(t)
			pod := filepath.Join(dir, "pod")
			require.NoError(t, os.Mkdir(pod, 0o755))
			make(t, pod)
			defer limitDescriptors(t, maxRemoveDepth+16)()
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			require.NoError(t, Remove(t.Context(), dir, "pod"))
			runtime.ReadMemStats(&after)
			assert.Less(t, after.Sys-before.Sys, uint64(16<<20))
			remains(t, dir)
		})
	}
}

// limitDescriptors allows this process no more than most descriptors beyond
// those it has.
func limitDescriptors(t *testing.T, most uint64) (restore func()) {
	t.Helper()
	open, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	var old unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &old))
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: uint64(len(open)) + most, Max: old.Max}))
	return func() { require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &old)) }
}

// A mount that lies deeper than Remove goes at a time is spared with what is in it.
func TestRemoveSparesDeepMounts(t *testing.T) {
	dir, outside := tree(t)
	deep := dir + "/pod/none" + strings.Repeat("/d", maxRemoveDepth+10)
	require.NoError(t, os.MkdirAll(deep, 0o755))
	bind(t, outside, deep)
	err := Remove(t.Context(), dir, "pod")
	require.ErrorIs(t, err, ErrMounted)
	assert.FileExists(t, outside+"/precious")
	assert.NoDirExists(t, dir+"/pod/w")

	points, err := Below(dir)
	require.NoError(t, err)
	require.Len(t, points, 1)
	require.NoError(t, unix.Unmount(points[0].Path, 0))
	require.NoError(t, Remove(t.Context(), dir, "pod"))
	remains(t, dir)
	assert.FileExists(t, outside+"/precious")
}

// Directories without permissions are removed, also as an ordinary user.
func TestRemove_InaccessibleDirectories(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.MkdirAll(dir+"/pod/closed/inner", 0o755))
	require.NoError(t, os.WriteFile(dir+"/pod/closed/inner/file", nil, 0o400))
	for _, d := range []string{"/pod/closed/inner", "/pod/closed", "/pod"} {
		require.NoError(t, os.Chmod(dir+d, 0o100))
	}
	require.NoError(t, Remove(t.Context(), dir, "pod"))
	remains(t, dir)
}

// The error for what cannot be removed says what can be done about it.
func TestRemove_ExplainsFixedFiles(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.MkdirAll(dir+"/a/closed", 0o700))
	for _, name := range []string{"/a/file", "/a/log", "/a/closed/file", "/a/other"} {
		require.NoError(t, os.WriteFile(dir+name, nil, 0o600))
	}
	systest.Fix(t, dir+"/a/file", systest.Immutable)
	systest.Fix(t, dir+"/a/log", systest.AppendOnly)
	systest.Fix(t, dir+"/a/closed", systest.Immutable)
	err := Remove(t.Context(), dir, "a")
	require.ErrorIs(t, err, unix.EPERM)
	for path, fixed := range map[string]string{"/a/file": "/a/file", "/a/log": "/a/log", "/a/closed/file": "/a/closed"} {
		require.ErrorContains(t, err, fmt.Sprintf("remove %s: operation not permitted: immutable or append-only: run chattr -ia %q", dir+path, dir+fixed))
	}
	assert.NoFileExists(t, dir+"/a/other")
}

func TestRemove_ReadOnlyFileSystem(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.MkdirAll(dir+"/src/a", 0o700))
	require.NoError(t, os.WriteFile(dir+"/src/a/file", nil, 0o600))
	require.NoError(t, os.Mkdir(dir+"/at", 0o700))
	bind(t, dir+"/src", dir+"/at")
	require.NoError(t, unix.Mount("", dir+"/at", "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, ""))
	require.NoError(t, Remove(t.Context(), dir+"/at", "missing"))
	err := Remove(t.Context(), dir+"/at", "a")
	require.ErrorIs(t, err, unix.EROFS)
	require.ErrorContains(t, err, "read-only file system: find out why in the log of the kernel, and mount it read-write")
}

// BenchmarkRemove compares the removal of a pod's directory with reading the mount table.
func BenchmarkRemove(b *testing.B) {
	dir := b.TempDir()
	b.Run("folder", func(b *testing.B) {
		for b.Loop() {
			b.StopTimer()
			require.NoError(b, os.MkdirAll(dir+"/pod/containers/app", 0o755))
			b.StartTimer()
			require.NoError(b, Remove(b.Context(), dir, "pod"))
		}
	})
	b.Run("table", func(b *testing.B) {
		for b.Loop() {
			_, err := Below(dir)
			require.NoError(b, err)
		}
	})
}
