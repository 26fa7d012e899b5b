package userns

import (
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"
)

type node struct {
	*Allocator
	t   *testing.T
	dir string
}

func newNode(t *testing.T, pods int) *node {
	n := &node{t: t, dir: t.TempDir()}
	n.restart(pods)
	return n
}

// restart returns the Allocator of a new process with the same directory.
func (n *node) restart(pods int) {
	a, err := New(Config{PodsDir: n.dir, MaxPods: pods})
	require.NoError(n.t, err)
	n.Allocator = a
}

func (n *node) path(uid string) string { return filepath.Join(n.dir, uid, "userns") }

func (n *node) ensure(uid string) (uint32, error) {
	require.NoError(n.t, os.MkdirAll(filepath.Join(n.dir, uid), 0o700))
	users, groups, err := n.Ensure(types.UID(uid))
	if err != nil {
		return 0, err
	}
	require.Len(n.t, users, 1)
	require.Equal(n.t, users, groups)
	require.Zero(n.t, users[0].Container)
	require.EqualValues(n.t, 65536, users[0].Length)
	return users[0].Host, nil
}

func (n *node) must(uid string) uint32 {
	n.t.Helper()
	host, err := n.ensure(uid)
	require.NoError(n.t, err)
	return host
}

func (n *node) remove(uid string) {
	require.NoError(n.t, os.RemoveAll(filepath.Join(n.dir, uid)))
	n.Release(types.UID(uid))
}

func TestEnsure_RangesAreUnique(t *testing.T) {
	n := newNode(t, 3)
	a, b := n.must("a"), n.must("b")
	assert.Equal(t, []uint32{65536, 131072}, []uint32{a, b})
	assert.Equal(t, a, n.must("a"), "asked again, the same")
	n.remove("a")
	assert.EqualValues(t, 3*65536, n.must("c"), "what was given back rests")
	assert.Equal(t, a, n.must("d"), "until there is nothing else")
	_, err := n.ensure("e")
	require.ErrorIs(t, err, ErrExhausted)
	n.Release("never observed")
	n.remove("b")
	assert.Equal(t, b, n.must("e"))
}

// Without a limit all ids can be allocated, and a first id that leaves none is an error.
func TestEnsure_AllIDs(t *testing.T) {
	n := &node{t: t, dir: t.TempDir()}
	var err error
	n.Allocator, err = New(Config{PodsDir: n.dir, FirstID: 65532 << 16})
	require.NoError(t, err)
	for i := range 3 {
		assert.EqualValues(t, (65532+i)<<16, n.must(fmt.Sprint(i)))
	}
	_, err = n.ensure("more")
	require.ErrorIs(t, err, ErrExhausted)
	_, err = New(Config{PodsDir: n.dir, FirstID: 65535 << 16})
	require.ErrorContains(t, err, "too small")
}

func TestEnsure_KeepsRangeAcrossRestarts(t *testing.T) {
	n := newNode(t, 4)
	a, b := n.must("a"), n.must("b")
	text, err := os.ReadFile(n.path("b"))
	require.NoError(t, err)
	assert.JSONEq(t, `{"uidMappings":[{"hostId":131072,"containerId":0,"length":65536}],
		"gidMappings":[{"hostId":131072,"containerId":0,"length":65536}]}`, string(text))
	info, err := os.Stat(n.path("b"))
	require.NoError(t, err)
	assert.Equal(t, fs.FileMode(0o600), info.Mode())
	n.restart(4)
	c := n.must("c")
	assert.NotContains(t, []uint32{a, b}, c)
	assert.Equal(t, b, n.must("b"))
	n.remove("b")
	n.restart(4)
	assert.Equal(t, b, n.must("d"), "a pod whose folder is gone has none")
}

// A partially written file is ignored.
func TestEnsure_CrashDuringWrite(t *testing.T) {
	n := newNode(t, 4)
	require.NoError(t, os.MkdirAll(filepath.Join(n.dir, "a"), 0o700))
	require.NoError(t, os.WriteFile(n.path("a")+".new", []byte(`{"uidMap`), 0o600))
	assert.EqualValues(t, 65536, n.must("b"))
	assert.EqualValues(t, 131072, n.must("a"))
}

func TestEnsure_FailsIfFileCannotBeWritten(t *testing.T) {
	n := newNode(t, 1)
	_, _, err := n.Ensure("no-folder")
	require.ErrorIs(t, err, fs.ErrNotExist)
	assert.EqualValues(t, 65536, n.must("a"), "and they are still free")
}

// As long as a file cannot be read, pods with ids keep them and no ids are allocated.
func TestEnsure_InvalidFiles(t *testing.T) {
	ids := func(host, container, length int64) string {
		m := fmt.Sprintf(`[{"hostId":%d,"containerId":%d,"length":%d}]`, host, container, length)
		return `{"uidMappings":` + m + `,"gidMappings":` + m + `}`
	}
	for name, text := range map[string]string{
		"empty":                  "",
		"not JSON":               "65536",
		"nobody's":               "{}",
		"groups differ":          `{"uidMappings":[{"hostId":65536,"length":65536}],"gidMappings":[{"hostId":131072,"length":65536}]}`,
		"too short":              ids(65536, 0, 1000),
		"not from 0":             ids(65536, 1, 65536),
		"not aligned":            ids(65537, 0, 65536),
		"the node's own":         ids(0, 0, 65536),
		"beyond the last":        ids(1<<32-65536, 0, 65536),
		"another pod's":          ids(65536, 0, 65536),
		"larger than any number": ids(1<<40, 0, 65536),
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, 8)
			mine := n.must("a")
			require.NoError(t, os.MkdirAll(filepath.Join(n.dir, "b"), 0o700))
			require.NoError(t, os.WriteFile(n.path("b"), []byte(text), 0o600))
			n.restart(8)
			_, err := n.ensure("new")
			require.ErrorIs(t, err, ErrStateUnknown)
			assert.ErrorContains(t, err, "b", "the culprit is named")
			assert.Equal(t, mine, n.must("a"))
			require.NoError(t, os.RemoveAll(filepath.Join(n.dir, "b")))
			assert.NotEqual(t, mine, n.must("new"), "clear again once it is gone")
		})
	}
}

func TestEnsure_FollowsNoLinks(t *testing.T) {
	n := newNode(t, 4)
	outside := t.TempDir()
	require.NoError(t, os.Symlink(outside, filepath.Join(n.dir, "a")))
	_, _, err := n.Ensure("a")
	require.Error(t, err)
	entries, err := os.ReadDir(outside)
	require.NoError(t, err)
	assert.Empty(t, entries)
	for _, uid := range []types.UID{"", ".", "..", "a/b", "a\x00"} {
		_, _, err := n.Ensure(uid)
		assert.ErrorContains(t, err, "not a path element", "%q", uid)
	}
}

func TestEnsure_SubordinateIDs(t *testing.T) {
	for name, c := range map[string]struct {
		uid, gid string
		first    uint32
		wrong    string
	}{
		"no files":          {"-", "-", 65536, ""},
		"nothing for it":    {"me:100000:65536\n", "me:100000:65536\n", 65536, ""},
		"a grant":           {"me:100000:65536\nkubelet:6553600:131072\n", "kubelet:6553600:131072\n", 6553600, ""},
		"groups lack it":    {"kubelet:65536:65536\n", "", 0, "different ids"},
		"groups differ":     {"kubelet:65536:65536\n", "kubelet:131072:65536\n", 0, "different ids"},
		"two grants":        {"kubelet:65536:65536\nkubelet:131072:65536\n", "", 0, "more than one"},
		"not aligned":       {"kubelet:100000:65536\n", "kubelet:100000:65536\n", 0, "must be a multiple"},
		"too few":           {"kubelet:65536:1000\n", "kubelet:65536:1000\n", 0, "too small for 0 pods"},
		"the node's own":    {"kubelet:0:65536\n", "kubelet:0:65536\n", 0, "must be a multiple"},
		"too many":          {"kubelet:65536:4294967295\n", "kubelet:65536:4294967295\n", 0, "too small for 65535 pods"},
		"all there are":     {"kubelet:65536:4294901760\n", "kubelet:65536:4294901760\n", 65536, ""},
		"the last range":    {"kubelet:4294901760:65536\n", "kubelet:4294901760:65536\n", 0, "too small for 0 pods"},
		"not a line of ids": {"kubelet:x:65536\n", "", 0, "form user:first:count"},
		"half a line":       {"kubelet:65536\n", "", 0, "form user:first:count"},
	} {
		t.Run(name, func(t *testing.T) {
			etc := fstest.MapFS{}
			for file, text := range map[string]string{"subuid": c.uid, "subgid": c.gid} {
				if text != "-" {
					etc[file] = &fstest.MapFile{Data: []byte(text)}
				}
			}
			n := newNode(t, 2)
			a, err := New(Config{PodsDir: n.dir, SubIDFS: etc})
			require.NoError(t, err)
			n.Allocator = a
			first, err := n.ensure("a")
			if c.wrong != "" {
				require.ErrorIs(t, err, ErrStateUnknown)
				require.ErrorContains(t, err, c.wrong)
				return
			}
			require.NoError(t, err)
			assert.Equal(t, c.first, first)
		})
	}
}

// A grant counts however many users have one before, and a file that is too large to be read whole is an error: the
// ids of the configuration may have been granted to others.
func TestEnsure_LargeSubordinateIDFiles(t *testing.T) {
	const line, grant = "someone:100000:65536\n", "kubelet:6553600:131072\n"
	file := func(lines int) fstest.MapFS {
		f := &fstest.MapFile{Data: []byte(strings.Repeat(line, lines) + grant)}
		return fstest.MapFS{"subuid": f, "subgid": f}
	}
	comment := strings.Repeat("#", 32<<10-1) + "\n"
	comments := func(size int) string { return strings.Repeat(comment, size/len(comment)+1)[:size-1] + "\n" }
	for name, c := range map[string]struct {
		etc   fstest.MapFS
		first uint32
		wrong string
	}{
		"100,000 users": {file(100_000), 6553600, ""},
		"too many":      {fstest.MapFS{"subuid": {Data: []byte(comments(maxSubIDs+1) + grant)}}, 0, "larger than"},
		"too many by the last byte": {
			fstest.MapFS{"subuid": {Data: []byte(comments(maxSubIDs-len(grant)) + grant)}}, 0, "larger than",
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, 2)
			a, err := New(Config{PodsDir: n.dir, SubIDFS: c.etc})
			require.NoError(t, err)
			n.Allocator = a
			first, err := n.ensure("a")
			if c.wrong != "" {
				require.ErrorIs(t, err, ErrStateUnknown)
				require.ErrorContains(t, err, c.wrong)
				return
			}
			require.NoError(t, err)
			assert.Equal(t, c.first, first)
		})
	}
}

func TestNew_RejectsInvalidConfig(t *testing.T) {
	for _, cfg := range []Config{
		{},
		{PodsDir: "pods"},
		{PodsDir: "/p", FirstID: 1000},
		{PodsDir: "/p", FirstID: 65537},
		{PodsDir: "/p", MaxPods: -1},
		{PodsDir: "/p", MaxPods: 65535},
		{PodsDir: "/p", FirstID: 1 << 31, MaxPods: 32768},
	} {
		_, err := New(cfg)
		assert.Error(t, err, "%+v", cfg)
	}
	for _, cfg := range []Config{{PodsDir: "/p"}, {PodsDir: "/p", MaxPods: 65534}, {PodsDir: "/p", FirstID: 1 << 31, MaxPods: 32767}} {
		_, err := New(cfg)
		assert.NoError(t, err, "%+v", cfg)
	}
}

// In random sequences with restarts no two pods share an id, no range changes while its
// pod exists, and the table matches the disk.
func TestAllocator_RandomSequences(t *testing.T) {
	for seed := range uint64(8) {
		rnd := rand.New(rand.NewPCG(seed, 3))
		const pods = 6
		n := newNode(t, pods)
		have := map[string]uint32{}
		for range 120 {
			uid := fmt.Sprint("p", rnd.IntN(9))
			switch rnd.IntN(5) {
			case 0, 1, 2:
				got, err := n.ensure(uid)
				if err != nil {
					require.ErrorIs(t, err, ErrExhausted)
					require.Len(t, have, pods, "seed %d: none is lost", seed)
					require.NoError(t, os.RemoveAll(filepath.Join(n.dir, uid)))
					continue
				}
				if was, ok := have[uid]; ok {
					require.Equal(t, was, got, "seed %d", seed)
				}
				have[uid] = got
			case 3:
				delete(have, uid)
				n.remove(uid)
			case 4:
				n.restart(pods)
			}
			observed := map[uint32]string{}
			for uid, host := range have {
				require.Empty(t, observed[host], "seed %d: %s and %s", seed, uid, observed[host])
				observed[host] = uid
			}
		}
	}
}

func TestEnsure_Concurrent(t *testing.T) {
	n := newNode(t, 64)
	var mu sync.Mutex
	observed := map[uint32]bool{}
	var wg sync.WaitGroup
	for i := range 64 {
		wg.Go(func() {
			host := n.must(fmt.Sprint(i))
			mu.Lock()
			defer mu.Unlock()
			assert.False(t, observed[host])
			observed[host] = true
		})
	}
	wg.Wait()
	assert.Len(t, observed, 64)
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(`{"uidMappings":[{"hostId":131072,"containerId":0,"length":65536}],"gidMappings":[{"hostId":131072,"containerId":0,"length":65536}]}`))
	f.Add([]byte(`{"uidMappings":null}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		if index, err := parse(b); err == nil && (index < 1 || index > 65534) {
			t.Fatalf("range %d out of %q", index, b)
		}
	})
}

// stallingFS is an etc that is read for long.
type stallingFS struct {
	fstest.MapFS
	reads, release chan struct{}
}

func (f stallingFS) Open(name string) (fs.File, error) {
	select {
	case f.reads <- struct{}{}:
		<-f.release
	default:
	}
	return f.MapFS.Open(name)
}

// The ids of a pod that is released while the disk is read are free then, as if the file of the
// pod, which stays here, had been read before it was removed.
func TestRelease_WhileTheDiskIsRead(t *testing.T) {
	n := newNode(t, 2)
	n.must("a")
	etc := stallingFS{fstest.MapFS{}, make(chan struct{}, 1), make(chan struct{})}
	var err error
	n.Allocator, err = New(Config{PodsDir: n.dir, MaxPods: 2, SubIDFS: etc})
	require.NoError(t, err)
	ensured, released := make(chan error, 1), make(chan struct{})
	require.NoError(t, os.MkdirAll(filepath.Join(n.dir, "b"), 0o700))
	go func() {
		_, _, err := n.Ensure("b")
		ensured <- err
	}()
	<-etc.reads
	go func() {
		n.Release("a")
		close(released)
	}()
	select {
	case <-released:
	case <-time.After(50 * time.Millisecond):
	}
	close(etc.release)
	require.NoError(t, <-ensured)
	<-released
	n.must("c")
}
