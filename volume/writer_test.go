//go:build linux

package volume

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sublet-dev/agent/podspec"
)

func entries(t *testing.T, dir string) []string {
	t.Helper()
	list, err := os.ReadDir(dir)
	require.NoError(t, err)
	var names []string
	for _, e := range list {
		names = append(names, e.Name())
	}
	return names
}

// Content is replaced atomically: a reader of one ..data reads one version of all files,
// and unchanged content is not written.
func TestWriter_ReplacesContentAtomically(t *testing.T) {
	s, m := &store{}, manager(t, nil)
	set := func(n int) {
		s.put(podspec.ConfigMap, "c", map[string]string{"a": fmt.Sprint(n), "b": fmt.Sprint(n), fmt.Sprintf("only-%d", n%2): ""})
	}
	set(0)
	p := pod(t, "u", "  - {name: v, configMap: {name: c}}\n")
	dir := mount(t, m, p, s)["v"].HostPath

	done := make(chan struct{})
	var reader sync.WaitGroup
	reader.Go(func() {
		for complete := 0; ; {
			select {
			case <-done:
				assert.Positive(t, complete)
				return
			default:
			}
			current, err := os.Readlink(dir + "/..data")
			if !assert.NoError(t, err) {
				return
			}
			a, errA := os.ReadFile(filepath.Join(dir, current, "a"))
			b, errB := os.ReadFile(filepath.Join(dir, current, "b"))
			if errA == nil && errB == nil { // else it was replaced meanwhile
				assert.Equal(t, string(a), string(b))
				complete++
			}
			// The way through ..data can be cut in two by a change, not by so many.
			_, err = os.ReadFile(dir + "/..data/a")
			for tries := 0; err != nil && tries < 100; tries++ {
				_, err = os.ReadFile(dir + "/..data/a")
			}
			assert.NoError(t, err)
		}
	})
	for n := range 200 {
		set(n)
		mount(t, m, p, s)
	}
	close(done)
	reader.Wait()
	was := entries(t, dir)
	assert.Len(t, was, 5, "..data, its directory, and three links: %v", was)
	assert.Contains(t, was, "only-1")
	mount(t, m, p, s)
	assert.Equal(t, was, entries(t, dir), "not written again")
}

// Two changes at the same fake time use two directories.
func TestWriter_ChangesAtTheSameTime(t *testing.T) {
	m := manager(t, nil)
	synctest.Test(t, func(t *testing.T) {
		s := &store{}
		p := pod(t, "u", "  - {name: v, configMap: {name: c}}\n")
		for _, data := range []map[string]string{{"a": "1", "b": "1"}, {"a": "2"}, {"a": "3", "c": "3"}} {
			s.put(podspec.ConfigMap, "c", data)
			want := make(map[string]string)
			for k, v := range data {
				want[k] = v + " 0644"
			}
			assert.Equal(t, want, tree(t, mount(t, m, p, s)["v"].HostPath))
		}
	})
}

// Writes that fail and are tried again leave nothing behind, whatever order the files are
// written in.
func TestWriter_FailedWritesDoNotAddUp(t *testing.T) {
	s, m := &store{}, manager(t, nil)
	s.put(podspec.ConfigMap, "c", map[string]string{"a": "1", "b": "2"})
	good, conflict := "{name: c, items: [{key: a, path: x}]}", "{name: c, items: [{key: a, path: x}, {key: b, path: x/y}]}"
	mountIt := func(configMap string) error {
		p := pod(t, "u", "  - {name: v, configMap: "+configMap+"}\n")
		_, err := m.Mount(t.Context(), p, s)
		return err
	}
	dir := mount(t, m, pod(t, "u", "  - {name: v, configMap: "+good+"}\n"), s)["v"].HostPath
	require.NoError(t, os.MkdirAll(dir+"/..2026_01_01_00_00_00.000000000/x", 0o755), "as a killed agent leaves it")
	before, err := os.Readlink(dir + "/..data")
	require.NoError(t, err)
	for range 5 {
		require.Error(t, mountIt(conflict))
		assert.ElementsMatch(t, []string{"..data", before, "x"}, entries(t, dir))
	}
	require.NoError(t, mountIt(good))
	assert.Equal(t, map[string]string{"x": "1 0644"}, tree(t, dir))
}

// A write repairs the directory after a crash at any point.
func TestWriter_AfterCrash(t *testing.T) {
	for name, crash := range map[string]func(t *testing.T, dir string){
		"content without a link to it": func(t *testing.T, dir string) {
			require.NoError(t, os.MkdirAll(dir+"/..2026_01_01_00_00_00.000000000/x", 0o755))
		},
		"a link not yet renamed": func(t *testing.T, dir string) {
			require.NoError(t, os.Symlink("..2026_01_01_00_00_00.000000000", dir+"/..data_tmp"))
		},
		"content half written": func(t *testing.T, dir string) {
			require.NoError(t, os.WriteFile(dir+"/..data/a", []byte("ha"), 0o644))
		},
		"a file too many":    func(t *testing.T, dir string) { require.NoError(t, os.WriteFile(dir+"/..data/zz", nil, 0o644)) },
		"a file too few":     func(t *testing.T, dir string) { require.NoError(t, os.Remove(dir+"/..data/a")) },
		"another mode":       func(t *testing.T, dir string) { require.NoError(t, os.Chmod(dir+"/..data/a", 0o600)) },
		"a link too few":     func(t *testing.T, dir string) { require.NoError(t, os.Remove(dir+"/a")) },
		"a link too many":    func(t *testing.T, dir string) { require.NoError(t, os.Symlink("..data/q", dir+"/q")) },
		"a link elsewhere":   func(t *testing.T, dir string) { relink(t, dir+"/a", "/etc/passwd") },
		"..data elsewhere":   func(t *testing.T, dir string) { relink(t, dir+"/..data", "../../..") },
		"..data to nowhere":  func(t *testing.T, dir string) { relink(t, dir+"/..data", "..gone") },
		"a file for a link":  func(t *testing.T, dir string) { _ = os.Remove(dir + "/a"); _ = os.WriteFile(dir+"/a", nil, 0o644) },
		"an empty directory": func(t *testing.T, dir string) { _ = os.Remove(dir + "/a"); _ = os.Mkdir(dir+"/a", 0o755) },
	} {
		t.Run(name, func(t *testing.T) {
			s, m := &store{}, manager(t, nil)
			s.put(podspec.ConfigMap, "c", map[string]string{"a": "1", "b": "2"})
			p := pod(t, "u", "  - {name: v, configMap: {name: c}}\n")
			dir := mount(t, m, p, s)["v"].HostPath
			crash(t, dir)
			m, err := New(m.cfg) // the next process
			require.NoError(t, err)
			mount(t, m, p, s)
			assert.Equal(t, map[string]string{"a": "1 0644", "b": "2 0644"}, tree(t, dir))
			assert.Len(t, entries(t, dir), 4)
			target, err := os.Readlink(dir + "/a")
			require.NoError(t, err)
			assert.Equal(t, "..data/a", target)
		})
	}
}

func relink(t *testing.T, at, to string) {
	t.Helper()
	require.NoError(t, os.Remove(at))
	require.NoError(t, os.Symlink(to, at))
}

// After each of many random writes the directory has the last content.
func TestWriter_RandomContents(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	dir := t.TempDir()
	root, err := os.OpenRoot(dir)
	require.NoError(t, err)
	defer func() { _ = root.Close() }()
	w := writer{ctx: t.Context(), root: root, path: dir}
	for range 150 {
		files, want := payload{}, map[string]string{}
		for range rng.IntN(6) {
			at := string('a' + rune(rng.IntN(3)))
			if rng.IntN(2) == 0 {
				at = path.Join("d"+at, string('a'+rune(rng.IntN(3))), "f")
			}
			f := file{data: []byte(fmt.Sprint(rng.IntN(3))), mode: 0o644}
			if rng.IntN(3) == 0 {
				f.mode = 0o400
			}
			files[at] = f
			want[at] = fmt.Sprintf("%s %#o", f.data, f.mode)
		}
		require.NoError(t, w.write(files))
		require.Equal(t, want, tree(t, dir))
		for _, name := range entries(t, dir) {
			require.True(t, strings.HasPrefix(name, "..") || tops(files)[name], name)
		}
	}
}

func BenchmarkMountUnchanged(b *testing.B) {
	m, err := New(Config{Root: b.TempDir(), Unprivileged: true})
	require.NoError(b, err)
	s := &store{}
	s.put(podspec.ConfigMap, "c", map[string]string{"a": strings.Repeat("x", 4096), "b": "2"})
	p := benchPod()
	b.ReportAllocs()
	for b.Loop() {
		if _, err := m.Mount(b.Context(), p, s); err != nil {
			b.Fatal(err)
		}
	}
}
