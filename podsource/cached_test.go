package podsource_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sublet-dev/agent/podsource"
	"github.com/sublet-dev/agent/podspec"
)

const withSecret = "---\napiVersion: v1\nkind: Secret\nmetadata: {name: s}\nstringData: {password: hunter2}\n"

// cachedSite runs a Mux over a server, each time as another process would.
func cachedSite(t *testing.T, dir string, s *fakeServer) *muxEnv {
	t.Helper()
	return start(t, podsource.Cached(ask(t, podsource.HTTPConfig{Transport: s}), dir))
}

var secretRef = podspec.Ref{Kind: podspec.Secret, Namespace: "default", Name: "s"}

// SR-9: what a source said last outlives the process, with its ConfigMaps and
// Secrets; when it speaks again it alone counts.
func TestCached_RestoresLastSet(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "sources", "http")
	bubble(t, func(t *testing.T) {
		s := &fakeServer{}
		s.says(200, manifest("x", "1")+"---\n"+manifest("y", "1")+withSecret)
		r := cachedSite(t, dir, s)
		require.Equal(t, []string{"ADD a x-n1=1 y-n1=1"}, r.delivered())
		uids := []any{r.mux.Pods()[0].UID, r.mux.Pods()[1].UID}
		r.stop()

		s.says(503, "")
		r = cachedSite(t, dir, s)
		assert.Equal(t, []string{"ADD a x-n1=1 y-n1=1"}, r.delivered())
		assert.Equal(t, uids, []any{r.mux.Pods()[0].UID, r.mux.Pods()[1].UID}, "the same pods")
		o, err := r.mux.Object(t.Context(), secretRef)
		require.NoError(t, err)
		assert.Equal(t, "hunter2", string(o.Data["password"]))
		assert.False(t, r.mux.HasSynced("a"), "it may want more")
		assert.True(t, r.mux.MayBeDesired("a", "default", "z-n1"), "a pod that runs and that the cache does not name")
		assert.Empty(t, r.mux.Unsynced(), "it is known what it wants")
		assert.Contains(t, r.errors(), "server responded 503")

		s.says(200, manifest("y", "1"))
		time.Sleep(20 * time.Second)
		assert.Equal(t, []string{"REMOVE a x-n1=1"}, r.delivered(), "dropped while we were away")
		assert.True(t, r.mux.HasSynced("a"))
		assert.Empty(t, r.errors())
		_, err = r.mux.Object(t.Context(), secretRef)
		require.ErrorIs(t, err, podspec.ErrObjectNotFound)
		r.stop()

		s.says(503, "")
		r = cachedSite(t, dir, s)
		assert.Equal(t, []string{"ADD a y-n1=1"}, r.delivered())
	})
	for path, mode := range map[string]os.FileMode{dir: 0o700 | os.ModeDir, filepath.Join(dir, "set.json"): 0o600} {
		info, err := os.Stat(path)
		require.NoError(t, err)
		assert.Equal(t, mode, info.Mode(), "no other user reads Secrets")
	}
}

// SR-9: a source that tells a part, before it tells all, takes nothing away.
func TestCached_SupplementsIncompleteSet(t *testing.T) {
	dir := t.TempDir()
	bubble(t, func(t *testing.T) {
		s := &fakeServer{}
		s.says(200, manifest("x", "1")+"---\n"+manifest("y", "1")+withSecret)
		cachedSite(t, dir, s).stopAfter(time.Second)

		s.says(200, manifest("x", "2")+"---\napiVersion: v1\nkind: Po")
		r := cachedSite(t, dir, s)
		synctest.Wait()
		assert.ElementsMatch(t, []string{"x-n1=2", "y-n1=1"}, r.desired())
		_, err := r.mux.Object(t.Context(), secretRef)
		require.NoError(t, err)
		r.stop()

		s.says(503, "")
		r = cachedSite(t, dir, s)
		assert.ElementsMatch(t, []string{"x-n1=1", "y-n1=1"}, r.desired(), "what is not the valid is not kept")
	})
}

func (r *muxEnv) stopAfter(d time.Duration) { time.Sleep(d); r.delivered(); r.stop() }

// SR-9: a damaged file is reported and renamed, and then treated like a missing one.
func TestCached_RenamesDamagedFile(t *testing.T) {
	for name, tt := range map[string]struct {
		damage func(b []byte) []byte
		want   string
	}{
		"cut":             {func(b []byte) []byte { return b[:len(b)/2] }, "truncated"},
		"empty":           {func([]byte) []byte { return nil }, "truncated"},
		"changed":         {func(b []byte) []byte { return []byte(strings.Replace(string(b), "image:1", "image:2", 1)) }, "checksum"},
		"of another time": {func(b []byte) []byte { return []byte(strings.Replace(string(b), `"version":1`, `"version":9`, 1)) }, "version 9"},
		"too large":       {func([]byte) []byte { return make([]byte, 64<<20+1) }, "file exceeds 67108864 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, "set.json")
			bubble(t, func(t *testing.T) {
				s := &fakeServer{}
				s.says(200, manifest("x", "image:1")+withSecret)
				cachedSite(t, dir, s).stopAfter(time.Second)
				valid, err := os.ReadFile(path)
				require.NoError(t, err)
				damaged := tt.damage(valid)
				require.NoError(t, os.WriteFile(path, damaged, 0o600))

				s.says(503, "")
				r := cachedSite(t, dir, s)
				assert.Empty(t, r.delivered())
				assert.Contains(t, r.errors(), tt.want)
				assert.Contains(t, r.errors(), "renamed to "+path+".damaged")
				assert.NotContains(t, r.errors(), "hunter2")
				assert.Len(t, r.mux.Unsynced(), 1)
				aside, err := os.ReadFile(path + ".damaged")
				require.NoError(t, err)
				assert.Equal(t, len(damaged), len(aside))

				s.says(200, manifest("x", "image:1"))
				time.Sleep(30 * time.Second)
				assert.Equal(t, []string{"ADD a x-n1=image:1"}, r.delivered())
				assert.Empty(t, r.errors(), "there is a good one again")
				r.stop()
				s.says(503, "")
				assert.Equal(t, []string{"ADD a x-n1=image:1"}, cachedSite(t, dir, s).delivered())
			})
		})
	}
}

// A Set that cannot be saved is reported and delivered all the same.
func TestCached_ReportsSaveError(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(dir, "set.json"), 0o700)) // no file can take its place
	bubble(t, func(t *testing.T) {
		m := podsource.NewMemory(pod("x", "1"))
		r := start(t, podsource.Cached(m, dir))
		assert.Equal(t, []string{"ADD a x=1"}, r.delivered())
		assert.Contains(t, r.errors(), "save pods of the source")
		require.NoError(t, os.Remove(filepath.Join(dir, "set.json")))
		m.Put(pod("x", "2"))
		time.Sleep(2 * time.Second)
		assert.Equal(t, []string{"UPDATE a x=2"}, r.delivered())
		assert.Empty(t, r.errors())
	})
}

// What could not be saved is saved when the disk has space, although the source has
// nothing new.
func TestCached_RetriesSave(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "set.json")
	require.NoError(t, os.Mkdir(path, 0o700)) // no file can take its place
	bubble(t, func(t *testing.T) {
		r := start(t, podsource.Cached(podsource.NewMemory(pod("x", "1")), dir))
		assert.Equal(t, []string{"ADD a x=1"}, r.delivered())
		time.Sleep(2 * time.Minute)
		assert.Contains(t, r.errors(), "save pods of the source")
		require.NoError(t, os.Remove(path))
		time.Sleep(time.Minute)
		assert.Empty(t, r.errors())
		content, err := os.ReadFile(path)
		require.NoError(t, err)
		assert.Contains(t, string(content), `"image":"1"`)
	})
}

// breaking is a source whose Watch ends with an error after it has handed over a
// Set, each time the next one.
type breaking struct {
	sets []podsource.Set
	n    atomic.Int32
}

func (b *breaking) Watch(_ context.Context, deliver func(podsource.Set)) error {
	if i := int(b.n.Add(1)) - 1; i < len(b.sets) {
		deliver(b.sets[i])
	}
	return errors.New("the connection broke")
}

// A source that is watched once more, and tells less than before, takes nothing
// back of what it said in the same process.
func TestCached_SecondWatchUsesSetInMemory(t *testing.T) {
	dir := t.TempDir()
	bubble(t, func(t *testing.T) {
		set := func(pods ...*corev1.Pod) (s podsource.Set) {
			for _, p := range pods {
				s.Pods = append(s.Pods, podsource.Manifest{Pod: p})
			}
			return s
		}
		src := &breaking{sets: []podsource.Set{set(pod("x", "1")), {Incomplete: true}, set(pod("y", "1"))}}
		r := start(t, podsource.Cached(src, dir))
		require.Equal(t, []string{"ADD a x=1"}, r.delivered())
		time.Sleep(1500 * time.Millisecond)
		assert.Empty(t, r.delivered())
		time.Sleep(time.Second)
		assert.Equal(t, []string{"REMOVE a x=1", "ADD a y=1"}, r.delivered())
	})
}

// A source that never rests costs one write a second, and its last word is kept.
func TestCached_SavesAtMostOncePerSecond(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "set.json")
	bubble(t, func(t *testing.T) {
		m := podsource.NewMemory(pod("x", "0"))
		r := start(t, podsource.Cached(m, dir))
		read := func() string {
			synctest.Wait()
			b, err := os.ReadFile(path)
			require.NoError(t, err)
			return string(b)
		}
		assert.Contains(t, read(), `"image":"0"`, "the first is kept at once")
		m.Put(pod("x", "1"))
		m.Put(pod("x", "2"))
		assert.Contains(t, read(), `"image":"0"`)
		time.Sleep(time.Second)
		assert.Contains(t, read(), `"image":"2"`)
		m.Put(pod("x", "3"))
		synctest.Wait()
		r.stop()
		assert.Contains(t, read(), `"image":"3"`)
	})
}

// All pods are written with each save, so that one whose status changes again and again does not wear the disk out. What a
// start needs of the status is saved at once, and the rest at the end.
func TestCached_SavesStatusesRarely(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "set.json")
	bubble(t, func(t *testing.T) {
		p := pod("x", "0")
		m := podsource.NewMemory(pod("y", "0"), p)
		r := start(t, podsource.Cached(m, dir))
		restarts, writes := int32(0), 0
		var last os.FileInfo
		put := func(change func(p *corev1.Pod)) {
			restarts++
			p = p.DeepCopy()
			p.ResourceVersion = fmt.Sprint(restarts)
			p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "c", RestartCount: restarts}}
			change(p)
			m.Put(p)
			time.Sleep(15 * time.Second)
			synctest.Wait()
			info, err := os.Stat(path)
			require.NoError(t, err)
			if last == nil || !os.SameFile(last, info) {
				last, writes = info, writes+1
			}
		}
		read := func() string {
			b, err := os.ReadFile(path)
			require.NoError(t, err)
			return string(b)
		}
		for range 240 { // an hour
			put(func(*corev1.Pod) {})
		}
		assert.InDelta(t, 6, writes, 1)
		for name, change := range map[string]func(*corev1.Pod){
			"label":    func(p *corev1.Pod) { p.Labels = map[string]string{"a": "b"} },
			"image":    func(p *corev1.Pod) { p.Spec.Containers[0].Image = "1" },
			"deletion": func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: time.Now()} },
			"end":      func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed },
			"claim": func(p *corev1.Pod) {
				p.Status.ResourceClaimStatuses = []corev1.PodResourceClaimStatus{{Name: "gpu"}}
			},
		} {
			writes = 0
			put(change)
			assert.Equal(t, 1, writes, name)
			assert.Contains(t, read(), fmt.Sprintf(`"restartCount":%d`, restarts), name)
		}
		put(func(*corev1.Pod) {})
		assert.NotContains(t, read(), fmt.Sprintf(`"restartCount":%d`, restarts))
		r.stop()
		assert.Contains(t, read(), fmt.Sprintf(`"restartCount":%d`, restarts))
	})
}

func FuzzCachedFile(f *testing.F) {
	dir := f.TempDir()
	path := filepath.Join(dir, "set.json")
	f.Add([]byte(`{"version":1,"sha256":"","set":{}}`))
	f.Add([]byte(`{"version":1,"sha256":"44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a","set":{}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		require.NoError(t, os.WriteFile(path, data, 0o600))
		ctx, cancel := context.WithCancel(t.Context())
		var handed []podsource.Set
		src := podsource.Cached(watchFunc(func(context.Context, func(podsource.Set)) error { cancel(); return nil }), dir)
		require.NoError(t, src.Watch(ctx, func(s podsource.Set) { handed = append(handed, s) }))
		require.Len(t, handed, 1)
		if len(handed[0].Errors) > 0 {
			require.NoFileExists(t, path)
			require.FileExists(t, path+".damaged")
		}
		require.True(t, handed[0].Incomplete)
	})
}

type watchFunc func(context.Context, func(podsource.Set)) error

func (f watchFunc) Watch(ctx context.Context, deliver func(podsource.Set)) error {
	return f(ctx, deliver)
}
