package volume

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/runtime"
)

// store holds ConfigMaps and Secrets that change.
type store struct {
	mu  sync.Mutex
	all map[podspec.Ref]podspec.Object
	err error
}

func (s *store) Object(_ context.Context, ref podspec.Ref) (podspec.Object, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	o, ok := s.all[ref]
	if s.err != nil || !ok {
		return o, errors.Join(s.err, podspec.ErrObjectNotFound)
	}
	return o, nil
}

func (s *store) put(kind, name string, data map[string]string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	o := podspec.Object{Ref: podspec.Ref{Kind: kind, Namespace: "default", Name: name}, Data: map[string][]byte{}}
	for k, v := range data {
		o.Data[k] = []byte(v)
	}
	if s.all == nil {
		s.all = make(map[podspec.Ref]podspec.Object)
	}
	s.all[o.Ref] = o
}

// manager returns a Manager with its own root, whose mounts are removed after the test.
func manager(t *testing.T, change func(*Config)) *Manager {
	t.Helper()
	cfg := Config{Root: t.TempDir(), Unprivileged: true}
	if change != nil {
		change(&cfg)
	}
	m, err := New(cfg)
	require.NoError(t, err)
	t.Cleanup(func() {
		for _, uid := range m.PodUIDs() {
			assert.NoError(t, m.Unmount(context.Background(), uid))
		}
	})
	return m
}

// privileged returns a Manager that mounts, or skips the test without permission.
func privileged(t *testing.T) *Manager {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("requires root: run as root to test what is mounted")
	}
	dir := t.TempDir()
	if err := (osMounter{}).tmpfs(dir, tmpfsOptions{mode: 0o700}); err != nil {
		t.Skip("needs the right to mount: ", err)
	}
	require.NoError(t, unix.Unmount(dir, 0))
	return manager(t, func(c *Config) { c.Unprivileged = false })
}

// pod returns a defaulted pod of uid whose one container mounts the volumes.
func pod(t *testing.T, uid, volumes string) *corev1.Pod {
	t.Helper()
	pods, _, err := podspec.Decode([]byte("apiVersion: v1\nkind: Pod\nmetadata: {name: p, namespace: default, labels: {a: b}}\nspec:\n"+
		"  containers: [{name: c, image: i, resources: {limits: {memory: 64Mi}}}]\n  volumes:\n"+volumes), podspec.DecodeOptions{})
	require.NoError(t, err)
	p := pods[0]
	p.UID = types.UID(uid)
	for _, v := range p.Spec.Volumes {
		p.Spec.Containers[0].VolumeMounts = append(p.Spec.Containers[0].VolumeMounts,
			corev1.VolumeMount{Name: v.Name, MountPath: "/" + v.Name})
	}
	podspec.Default(p)
	require.NoError(t, podspec.Validate(p))
	return p
}

func mount(t *testing.T, m *Manager, p *corev1.Pod, o podspec.Objects) map[string]runtime.Volume {
	t.Helper()
	v, err := m.Mount(t.Context(), p, o)
	require.NoError(t, err)
	return v
}

// tree returns the content of a volume by path, through its links, with modes.
func tree(t *testing.T, dir string) map[string]string {
	t.Helper()
	out := make(map[string]string)
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	for _, e := range entries {
		if e.Name()[0] == '.' && e.Name() != ".hidden" {
			continue
		}
		real, err := filepath.EvalSymlinks(filepath.Join(dir, e.Name()))
		require.NoError(t, err)
		require.NoError(t, filepath.WalkDir(real, func(p string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			b, err := os.ReadFile(p)
			info, _ := d.Info()
			rel, _ := filepath.Rel(real, p)
			out[filepath.Join(e.Name(), rel)] = fmt.Sprintf("%s %#o", b, info.Mode().Perm())
			return err
		}))
	}
	return out
}

func TestNew_RequiresAbsoluteRoot(t *testing.T) {
	_, err := New(Config{Root: "here"})
	assert.ErrorContains(t, err, `"here"`)
}

func TestMount_EmptyDir(t *testing.T) {
	m := manager(t, nil)
	p := pod(t, "u1", "  - {name: a}\n  - {name: unused}\n")
	p.Spec.Containers[0].VolumeMounts = p.Spec.Containers[0].VolumeMounts[:1]
	v := mount(t, m, p, nil)
	require.Len(t, v, 1, "what no container mounts is left out")
	path := v["a"].HostPath
	assert.Equal(t, m.cfg.Root+"/pods/u1/volumes/kubernetes.io~empty-dir/a", path)
	info, err := os.Stat(path)
	require.NoError(t, err)
	assert.Equal(t, fs.FileMode(0o777)|fs.ModeDir, info.Mode())

	require.NoError(t, os.WriteFile(path+"/kept", nil, 0o600))
	require.NoError(t, os.Chmod(path, 0o700)) // the container's wish
	assert.Equal(t, v, mount(t, m, p, nil))
	info, err = os.Stat(path)
	require.NoError(t, err)
	assert.Equal(t, fs.FileMode(0o700)|fs.ModeDir, info.Mode(), "made once")
	assert.FileExists(t, path+"/kept")
}

func TestMount_Content(t *testing.T) {
	s := &store{}
	s.put(podspec.ConfigMap, "c", map[string]string{"a": "1", "b.txt": "2", ".hidden": "3"})
	s.put(podspec.Secret, "s", map[string]string{"user": "me", "pass": "secret"})
	for name, tc := range map[string]struct {
		volume string
		want   map[string]string
	}{
		"all keys":        {"configMap: {name: c}", map[string]string{"a": "1 0644", "b.txt": "2 0644", ".hidden": "3 0644"}},
		"items and modes": {"configMap: {name: c, defaultMode: 0400, items: [{key: a, path: x/y/z}, {key: b.txt, path: x/w, mode: 0755}]}", map[string]string{"x/y/z": "1 0400", "x/w": "2 0755"}},
		"a secret":        {"secret: {secretName: s, defaultMode: 0400}", map[string]string{"user": "me 0400", "pass": "secret 0400"}},
		"optional":        {"configMap: {name: none, optional: true}", map[string]string{}},
		"an optional key": {"secret: {secretName: s, optional: true, items: [{key: none, path: x}, {key: user, path: u}]}", map[string]string{"u": "me 0644"}},
		"pod fields": {
			"downwardAPI: {items: [{path: nm, fieldRef: {fieldPath: metadata.name}}, {path: l/all, fieldRef: {fieldPath: metadata.labels}}, {path: m, mode: 0600, resourceFieldRef: {containerName: c, resource: limits.memory, divisor: 1Mi}}, {path: cpu, resourceFieldRef: {containerName: c, resource: limits.cpu}}]}",
			map[string]string{"nm": "p 0644", "l/all": "a=\"b\" 0644", "m": "64 0600", "cpu": "3 0644"},
		},
		"projected": {
			"projected: {defaultMode: 0440, sources: [{}, {configMap: {name: c, items: [{key: a, path: cm/a}]}}, {secret: {name: s, items: [{key: user, path: cm/u, mode: 0400}]}}, {downwardAPI: {items: [{path: name, fieldRef: {fieldPath: metadata.name}}]}}]}",
			map[string]string{"cm/a": "1 0440", "cm/u": "me 0400", "name": "p 0440"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			m := manager(t, func(c *Config) {
				c.Allocatable = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("3")}
			})
			v := mount(t, m, pod(t, "u", "  - {name: v, "+tc.volume+"}\n"), s)["v"]
			assert.True(t, v.ReadOnly)
			assert.Equal(t, tc.want, tree(t, v.HostPath))
		})
	}
}

func TestMount_NamesAllMissingObjects(t *testing.T) {
	s := &store{}
	s.put(podspec.ConfigMap, "c", map[string]string{"a": "s3cret"})
	m := manager(t, nil)
	p := pod(t, "u", `
  - {name: one, configMap: {name: gone}}
  - {name: two, projected: {sources: [{secret: {name: gone}}, {configMap: {name: c, items: [{key: b, path: x}]}}]}}
  - {name: mem, emptyDir: {medium: Memory}}
  - {name: fine, configMap: {name: c}}
`)
	v, err := m.Mount(t.Context(), p, s)
	assert.Nil(t, v)
	for _, want := range []string{`MountVolume.SetUp failed for volume "one": ConfigMap default/gone`, `volume "two": Secret default/gone`, `ConfigMap default/c has no key "b"`, `volume "mem": emptyDir with medium Memory: requires root`} {
		assert.ErrorContains(t, err, want)
	}
	assert.NotContains(t, err.Error(), "s3cret")
	assert.NotContains(t, err.Error(), `"fine"`)
	assert.ErrorIs(t, err, podspec.ErrObjectNotFound)
	assert.ErrorIs(t, err, ErrPrivilege)

	_, err = m.Mount(t.Context(), pod(t, "u", "  - {name: v, configMap: {name: c}}\n"), nil)
	assert.ErrorIs(t, err, podspec.ErrObjectNotFound, "without any objects")

	// That something could not be found out is no absence.
	s.err = errors.New("out of reach")
	s.all = nil
	_, err = m.Mount(t.Context(), pod(t, "u", "  - {name: v, configMap: {name: c}}\n"), s)
	assert.ErrorContains(t, err, "out of reach")
}

// Names and paths are checked here even though validation checks them, too.
func TestMount_RejectsUnsafeNames(t *testing.T) {
	outside := t.TempDir()
	m := manager(t, nil)
	for name, change := range map[string]func(*corev1.Pod, *store){
		"uid":         func(p *corev1.Pod, _ *store) { p.UID = "../x" },
		"uid of dots": func(p *corev1.Pod, _ *store) { p.UID = ".." },
		"no uid":      func(p *corev1.Pod, _ *store) { p.UID = "" },
		"volume": func(p *corev1.Pod, _ *store) {
			p.Spec.Volumes[0].Name = "../../x"
			p.Spec.Containers[0].VolumeMounts[0].Name = "../../x"
		},
		"key":         func(_ *corev1.Pod, s *store) { s.put(podspec.ConfigMap, "c", map[string]string{"../../x": "1"}) },
		"dotted key":  func(_ *corev1.Pod, s *store) { s.put(podspec.ConfigMap, "c", map[string]string{"..data": "1"}) },
		"item":        func(p *corev1.Pod, _ *store) { p.Spec.Volumes[0].ConfigMap.Items[0].Path = "a/../../x" },
		"absolute":    func(p *corev1.Pod, _ *store) { p.Spec.Volumes[0].ConfigMap.Items[0].Path = outside + "/x" },
		"dotted item": func(p *corev1.Pod, _ *store) { p.Spec.Volumes[0].ConfigMap.Items[0].Path = "..x" },
	} {
		t.Run(name, func(t *testing.T) {
			s := &store{}
			s.put(podspec.ConfigMap, "c", map[string]string{"k": "1"})
			p := pod(t, "u", "  - {name: v, configMap: {name: c, items: [{key: k, path: x}]}}\n")
			if name == "key" || name == "dotted key" {
				p.Spec.Volumes[0].ConfigMap.Items = nil
			}
			change(p, s)
			_, err := m.Mount(t.Context(), p, s)
			assert.ErrorIs(t, err, ErrUnsafe)
		})
	}
	assert.ErrorIs(t, m.Unmount(t.Context(), ".."), ErrUnsafe)
	_, err := m.SubPath(t.Context(), "u", "../c", runtime.Volume{HostPath: outside}, "x")
	assert.ErrorIs(t, err, ErrUnsafe)
}

func TestMount_PodDirectoryIsLink(t *testing.T) {
	outside := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(outside, "volumes"), 0o755))
	m := manager(t, nil)
	require.NoError(t, os.MkdirAll(filepath.Join(m.cfg.Root, "pods"), 0o755))
	require.NoError(t, os.Symlink(outside, filepath.Join(m.cfg.Root, "pods/u")))
	_, err := m.Mount(t.Context(), pod(t, "u", "  - {name: v}\n"), nil)
	assert.ErrorIs(t, err, ErrUnsafe)
	assert.ErrorIs(t, m.Unmount(t.Context(), "u"), ErrUnsafe)
	assert.DirExists(t, filepath.Join(outside, "volumes"))
	assert.Empty(t, m.PodUIDs())
}

func TestMount_HostPath(t *testing.T) {
	dir := t.TempDir()
	defer unix.Umask(unix.Umask(0o077)) // which takes nothing from what is made
	file := filepath.Join(dir, "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	require.NoError(t, os.Symlink(dir, filepath.Join(dir, "link")))
	require.NoError(t, os.Symlink("linked", filepath.Join(dir, "dangling")))
	sock, err := net.Listen("unix", filepath.Join(dir, "sock"))
	require.NoError(t, err)
	defer func() { _ = sock.Close() }()
	const ok, kind, none = "", "is no", "no such file"
	for _, tc := range []struct {
		path string
		kind corev1.HostPathType
		want string
	}{
		{"nowhere", corev1.HostPathUnset, ok},
		{"", corev1.HostPathDirectory, ok},
		{"link", corev1.HostPathDirectory, ok},
		{"file", corev1.HostPathDirectory, kind},
		{"none", corev1.HostPathDirectory, none},
		{"new/dir", corev1.HostPathDirectoryOrCreate, ok},
		{"file", corev1.HostPathDirectoryOrCreate, kind},
		{"file", corev1.HostPathFile, ok},
		{"", corev1.HostPathFile, kind},
		{"none", corev1.HostPathFile, none},
		{"newfile", corev1.HostPathFileOrCreate, ok},
		{"newfile", corev1.HostPathFileOrCreate, ok},
		{"", corev1.HostPathFileOrCreate, kind},
		{"dangling", corev1.HostPathFileOrCreate, ok},
		{"a/b/c", corev1.HostPathFileOrCreate, none},
		{"sock", corev1.HostPathSocket, ok},
		{"file", corev1.HostPathSocket, kind},
		{"/dev/null", corev1.HostPathCharDev, ok},
		{"/dev/null", corev1.HostPathBlockDev, kind},
		{"file", corev1.HostPathCharDev, kind},
	} {
		path := tc.path
		if !filepath.IsAbs(path) {
			path = filepath.Join(dir, path)
		}
		p := pod(t, "u", "  - {name: v, hostPath: {path: "+path+", type: '"+string(tc.kind)+"'}}\n")
		v, err := manager(t, nil).Mount(t.Context(), p, nil)
		if tc.want == ok {
			assert.NoError(t, err, "%+v", tc)
			assert.Equal(t, runtime.Volume{HostPath: path}, v["v"])
		} else {
			assert.ErrorContains(t, err, tc.want, "%+v", tc)
			assert.ErrorContains(t, err, `volume "v": hostPath`)
		}
	}
	for path, want := range map[string]fs.FileMode{"new": 0o755, "new/dir": 0o755, "newfile": 0o644, "linked": 0o644} {
		info, err := os.Stat(filepath.Join(dir, path))
		require.NoError(t, err)
		assert.Equal(t, want, info.Mode().Perm(), path)
	}
}

func TestMount_ImageVolume(t *testing.T) {
	m := manager(t, nil)
	v := mount(t, m, pod(t, "u", "  - {name: v, image: {reference: 'r/i:1'}}\n"), nil)
	assert.Equal(t, runtime.Volume{Image: "r/i:1", ReadOnly: true}, v["v"])
	assert.NoDirExists(t, filepath.Join(m.cfg.Root, "pods"))
}

func TestMount_FSGroup(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("requires root: only root gives files away")
	}
	s := &store{}
	s.put(podspec.Secret, "s", map[string]string{"k": "1"})
	m := manager(t, nil)
	p := pod(t, "u", "  - {name: e}\n  - {name: s, secret: {secretName: s, defaultMode: 0400, items: [{key: k, path: d/k}]}}\n  securityContext: {fsGroup: 2345}\n")
	v := mount(t, m, p, s)
	for path, mode := range map[string]fs.FileMode{
		v["e"].HostPath:          fs.ModeDir | fs.ModeSetgid | 0o777,
		v["s"].HostPath + "/d":   fs.ModeDir | fs.ModeSetgid | 0o755,
		v["s"].HostPath + "/d/k": 0o440,
	} {
		info, err := os.Stat(path)
		require.NoError(t, err)
		assert.Equal(t, mode, info.Mode(), path)
		assert.Equal(t, uint32(2345), info.Sys().(*syscall.Stat_t).Gid, path)
	}
	was, _ := os.Readlink(v["s"].HostPath + "/..data")
	mount(t, m, p, s)
	is, _ := os.Readlink(v["s"].HostPath + "/..data")
	assert.Equal(t, was, is, "nothing changed")
}

func TestMount_SecretsOnDiskArePrivate(t *testing.T) {
	s := &store{}
	s.put(podspec.Secret, "s", map[string]string{"k": "1"})
	v := mount(t, manager(t, nil), pod(t, "u", "  - {name: v, secret: {secretName: s}}\n"), s)
	info, err := os.Stat(filepath.Dir(v["v"].HostPath))
	require.NoError(t, err)
	assert.Equal(t, fs.FileMode(0o700), info.Mode().Perm())
}

func TestMount_Cancelled(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := manager(t, nil).Mount(ctx, pod(t, "u", "  - {name: v}\n"), nil)
	assert.ErrorIs(t, err, context.Canceled)
}

// Many pods are mounted, mounted again and unmounted in parallel.
func TestManager_PodsInParallel(t *testing.T) {
	s := &store{}
	s.put(podspec.ConfigMap, "c", map[string]string{"k": "1"})
	m := manager(t, nil)
	var wg sync.WaitGroup
	for i := range 32 {
		p := pod(t, fmt.Sprintf("u%d", i%16), "  - {name: a}\n  - {name: b, configMap: {name: c}}\n")
		wg.Go(func() {
			for range 3 {
				_, err := m.Mount(t.Context(), p, s)
				assert.NoError(t, err)
				m.PodUIDs()
			}
		})
	}
	wg.Wait()
	assert.Len(t, m.PodUIDs(), 16)
	assert.Empty(t, m.locks.locks)
	for _, uid := range m.PodUIDs() {
		wg.Go(func() { assert.NoError(t, m.Unmount(t.Context(), uid)) })
	}
	wg.Wait()
	entries, err := os.ReadDir(filepath.Join(m.cfg.Root, "pods"))
	require.NoError(t, err)
	assert.Empty(t, entries)
}
