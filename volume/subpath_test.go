//go:build linux

package volume

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/runtime"
)

func benchPod() *corev1.Pod {
	p := &corev1.Pod{}
	p.UID, p.Namespace = "u", "default"
	p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{
		ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "c"}},
	}}}
	p.Spec.Containers = []corev1.Container{{Name: "c", VolumeMounts: []corev1.VolumeMount{{Name: "v", MountPath: "/v"}}}}
	podspec.Default(p)
	return p
}

func TestSubPath(t *testing.T) {
	outside := t.TempDir()
	require.NoError(t, os.WriteFile(outside+"/precious", nil, 0o644))
	const ok = ""
	for sub, tc := range map[string]struct{ want, at string }{
		"file":                            {ok, "file"},
		"dir":                             {ok, "dir"},
		"dir/":                            {ok, "dir"},
		"./dir//inner/.":                  {ok, "dir/inner"},
		"dir/../file":                     {ok, "file"},
		"new/dirs/here":                   {ok, "new/dirs/here"},
		"to-file":                         {ok, "file"},
		"to-dir/inner":                    {ok, "dir/inner"},
		"dir/up/file":                     {ok, "file"},
		"chain":                           {ok, "file"},
		"to-nothing":                      {ok, "not-yet"},
		"":                                {ok, ""},
		"absolute-inside/inner":           {ok, "dir/inner"},
		"dir/absolute-root/file":          {ok, "file"},
		"absolute-beside":                 {"absolute", ""},
		"absolute-up/precious":            {"escapes its directory", ""},
		"/etc":                            {"relative", ""},
		"..":                              {"escapes its directory", ""},
		"dir/../../x":                     {"escapes its directory", ""},
		"escape/precious":                 {"escapes its directory", ""},
		"escape-absolute":                 {"absolute", ""},
		"dir/escape-up":                   {"escapes its directory", ""},
		"loop":                            {"too many levels", ""},
		"file/x":                          {"not a directory", ""},
		strings.Repeat("d/", 400):         {"too deep", ""},
		"dir/" + strings.Repeat("x", 300): {"name too long", ""},
	} {
		t.Run(sub[:min(len(sub), 20)], func(t *testing.T) {
			dir := t.TempDir()
			require.NoError(t, os.MkdirAll(dir+"/dir/inner", 0o755))
			require.NoError(t, os.WriteFile(dir+"/file", nil, 0o644))
			rel, err := filepath.Rel(dir, outside)
			require.NoError(t, err)
			for at, to := range map[string]string{
				"to-file": "file", "to-dir": "dir", "dir/up": "..", "chain": "to-dir/../chain2", "chain2": "to-file",
				"to-nothing": "not-yet", "escape": rel, "escape-absolute": outside, "dir/escape-up": "../../..", "loop": "loop",
				"absolute-inside": dir + "/dir", "dir/absolute-root": dir, "absolute-beside": dir + "-x", "absolute-up": dir + "/" + rel,
			} {
				require.NoError(t, os.Symlink(to, filepath.Join(dir, at)))
			}
			got, err := manager(t, nil).SubPath(t.Context(), "u", "c", runtime.Volume{HostPath: dir}, sub)
			if tc.want != ok {
				assert.ErrorContains(t, err, tc.want)
				assert.ErrorContains(t, err, "subPath")
				return
			}
			require.NoError(t, err)
			assert.Equal(t, filepath.Join(dir, tc.at), got)
		})
	}
}

// The path of a volume can be a link, as /data to a disk. Absolute links in the volume may have either path.
func TestSubPath_VolumeIsLink(t *testing.T) {
	dir := t.TempDir()
	disk, link := filepath.Join(dir, "disk"), filepath.Join(dir, "link")
	require.NoError(t, os.MkdirAll(disk+"/dir", 0o755))
	require.NoError(t, os.Symlink(disk, link))
	for at, to := range map[string]string{"by-disk": disk + "/dir", "by-link": link + "/dir", "beside": disk + "-x"} {
		require.NoError(t, os.Symlink(to, filepath.Join(disk, at)))
	}
	m := manager(t, nil)
	for _, sub := range []string{"by-disk", "by-link"} {
		got, err := m.SubPath(t.Context(), "u", "c", runtime.Volume{HostPath: link}, sub)
		require.NoError(t, err)
		assert.Equal(t, disk+"/dir", got)
	}
	_, err := m.SubPath(t.Context(), "u", "c", runtime.Volume{HostPath: link}, "beside")
	require.ErrorIs(t, err, ErrUnsafe)
}

func TestSubPath_CreatesDirectoriesWithModeOfVolume(t *testing.T) {
	defer syscall.Umask(syscall.Umask(0o077))
	m := manager(t, nil)
	v := mount(t, m, pod(t, "u", "  - {name: v}\n"), nil)["v"]
	require.NoError(t, os.Chmod(v.HostPath, fs.ModeSetgid|0o775))
	path, err := m.SubPath(t.Context(), "u", "c", v, "a/b")
	require.NoError(t, err)
	for _, p := range []string{path, filepath.Dir(path)} {
		info, err := os.Stat(p)
		require.NoError(t, err)
		assert.Equal(t, fs.ModeDir|fs.ModeSetgid|0o775, info.Mode(), p)
	}
}

// The keys of a ConfigMap are links whose target changes with the content.
func TestSubPath_ConfigMap(t *testing.T) {
	m, s := privileged(t), &store{}
	p := pod(t, "u", "  - {name: v, configMap: {name: c}}\n")
	for _, value := range []string{"one", "two"} {
		s.put(podspec.ConfigMap, "c", map[string]string{"k": value})
		v := mount(t, m, p, s)["v"]
		path, err := m.SubPath(t.Context(), "u", "c", v, "k")
		require.NoError(t, err)
		got, err := os.ReadFile(path)
		require.NoError(t, err)
		assert.Equal(t, value, string(got))
	}
}

// A process in the container replaces a directory by a link to files of the node as fast
// as it can. The mounted file is always in the volume.
func TestSubPath_SymlinkRace(t *testing.T) {
	m := privileged(t)
	outside := t.TempDir()
	require.NoError(t, os.Mkdir(outside+"/x", 0o755))
	require.NoError(t, os.WriteFile(outside+"/x/precious", nil, 0o644))
	v := mount(t, m, pod(t, "u", "  - {name: v}\n"), nil)["v"]
	require.NoError(t, os.MkdirAll(v.HostPath+"/a/x", 0o755))
	require.NoError(t, os.WriteFile(v.HostPath+"/a/x/mine", nil, 0o644))
	require.NoError(t, os.Symlink(outside, v.HostPath+"/evil"))

	exchange := func() error {
		return unix.Renameat2(unix.AT_FDCWD, v.HostPath+"/a", unix.AT_FDCWD, v.HostPath+"/evil", unix.RENAME_EXCHANGE)
	}
	require.NoError(t, exchange(), "the file system of TMPDIR must support it")

	done := make(chan struct{})
	var attacker sync.WaitGroup
	attacker.Go(func() {
		for {
			select {
			case <-done:
				return
			default:
				_ = exchange()
			}
		}
	})
	// The scheduler may leave the attacker in one state for a long time: both have to be met.
	for good, unsafe := 0, 0; good < 200 || unsafe < 200; {
		path, err := m.SubPath(t.Context(), "u", "c", v, "a/x")
		if err != nil {
			unsafe++
			assert.ErrorIs(t, err, ErrUnsafe)
			continue
		}
		good++
		assert.NoFileExists(t, path+"/precious")
		assert.FileExists(t, path+"/mine")
	}
	close(done)
	attacker.Wait()
	assert.FileExists(t, outside+"/x/precious")
}

// The walker has the same result as openat2 with RESOLVE_BENEATH, for random symbolic
// links.
func FuzzSubPath(f *testing.F) {
	f.Add("a b/c a/d", "a/d", "d>b e>../b")
	f.Add("a/b", "l/m", "l>a a/m>../x x>a/b")
	f.Add("a", "l", "l>..")
	f.Add("a", "l/l/l", "l>. a/l>/a")
	f.Add("a", "x/../../y", "x>a")
	f.Fuzz(func(t *testing.T, dirs, sub, links string) {
		if len(dirs)+len(sub)+len(links) > 400 || strings.ContainsRune(dirs+sub+links, 0) {
			return
		}
		base := t.TempDir()
		root, err := os.OpenRoot(base)
		require.NoError(t, err)
		defer func() { _ = root.Close() }()
		require.NoError(t, root.Mkdir("v", 0o755))
		vol, err := root.OpenRoot("v")
		require.NoError(t, err)
		defer func() { _ = vol.Close() }()
		for d := range strings.FieldsSeq(dirs) {
			_ = vol.MkdirAll(d, 0o755)
		}
		for l := range strings.FieldsSeq(links) {
			if at, to, ok := strings.Cut(l, ">"); ok && to != "" {
				_ = vol.Symlink(to, at)
			}
		}
		fd, err := openInside(base+"/v", sub)
		if err != nil {
			if errors.Is(err, fs.ErrNotExist) {
				t.Fatalf("%q: what is missing should have been made: %v", sub, err)
			}
			// Nothing was made on the way that would let the kernel through
			// where the walk refused, but for its own limits.
			if errors.Is(err, ErrUnsafe) && kernelOpens(base+"/v", sub) {
				t.Fatalf("%q: the kernel finds it inside: %v", sub, err)
			}
			return
		}
		defer func() { _ = unix.Close(fd) }()
		how := unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_MAGICLINKS}
		top, err := unix.Open(base+"/v", unix.O_PATH|unix.O_DIRECTORY, 0)
		require.NoError(t, err)
		defer func() { _ = unix.Close(top) }()
		other, err := openat2(top, "./"+sub, &how)
		if errors.Is(err, unix.ENOSYS) {
			t.Skip("the kernel has no openat2")
		}
		if err != nil {
			t.Fatalf("%q: the kernel says %v", sub, err)
		}
		defer func() { _ = unix.Close(other) }()
		var a, b unix.Stat_t
		require.NoError(t, unix.Fstat(fd, &a))
		require.NoError(t, unix.Fstat(other, &b))
		if a.Ino != b.Ino || a.Dev != b.Dev {
			t.Fatalf("%q: the kernel finds another file", sub)
		}
	})
}

func kernelOpens(dir, sub string) bool {
	top, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return false
	}
	defer func() { _ = unix.Close(top) }()
	how := unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_MAGICLINKS}
	fd, err := openat2(top, sub, &how)
	if err == nil {
		_ = unix.Close(fd)
	}
	return err == nil
}

// openat2 is the system call, repeated while a mount or rename anywhere on the machine
// keeps the kernel from following "..".
func openat2(dir int, path string, how *unix.OpenHow) (int, error) {
	for {
		fd, err := unix.Openat2(dir, path, how)
		if !errors.Is(err, unix.EAGAIN) {
			return fd, err
		}
	}
}
