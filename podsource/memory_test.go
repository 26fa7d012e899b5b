package podsource_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/podsource"
	"github.com/sublet-dev/agent/podspec"
)

func podWithoutUID(name, image string) *corev1.Pod {
	p := pod(name, image)
	p.UID, p.Namespace = "", ""
	return p
}

// A pod keeps its UID by its name, from one process to the next, whatever was put
// and deleted before.
func TestMemory_UIDs(t *testing.T) {
	bubble(t, func(t *testing.T) {
		source := podsource.NewMemory(podWithoutUID("x", "1"), podWithoutUID("y", "1"))
		r := start(t, source)
		uid := func(name string) types.UID {
			r.delivered()
			for _, p := range r.mux.Pods() {
				if p.Name == name {
					return p.UID
				}
			}
			return ""
		}
		first := uid("x")
		assert.NotEmpty(t, first)
		assert.NotEqual(t, first, uid("y"))
		source.Put(podWithoutUID("x", "2"))
		assert.Equal(t, first, uid("x"), "an edit")
		source.Set(podWithoutUID("x", "3"))
		assert.Equal(t, first, uid("x"), "the rest was replaced")
		assert.Empty(t, uid("y"))

		assert.True(t, source.Delete("", "x"))
		assert.False(t, source.Delete("default", "x"))
		source.Put(podWithoutUID("x", "3"), podWithoutUID("y", "1"))
		assert.Equal(t, first, uid("x"), "it is back")
		source.Put(pod("x", "3"))
		assert.Equal(t, types.UID("uid-x"), uid("x"), "its own")

		restarted := start(t, podsource.NewMemory(podWithoutUID("x", "1")))
		restarted.delivered()
		assert.Equal(t, first, restarted.mux.Pods()[0].UID, "the next process finds it running")
	})
}

// Hooks are called, and no value of a Secret is logged.
func TestMux_HooksAndLog(t *testing.T) {
	bubble(t, func(t *testing.T) {
		secret := "apiVersion: v1\nkind: Secret\nmetadata: {name: s}\nstringData: {password: hunter2}\n"
		dir, k := manifestDir(map[string]string{"x.yaml": manifest("x", "1"), "s.yaml": secret}), newFakeNotifier()
		var mu sync.Mutex
		var calls []string
		note := func(format string, args ...any) {
			mu.Lock()
			defer mu.Unlock()
			calls = append(calls, fmt.Sprintf(format, args...))
		}
		var logged bytes.Buffer
		mux, err := podsource.New(podsource.Config{
			NodeName: "n1", Logger: slog.New(slog.NewTextHandler(&logged, nil)),
			Sources: []podsource.NamedSource{{Name: "file", Source: podsource.File("m", podsource.FileFS(dir), podsource.FileNotifier(k))}},
			Hooks: podsource.Hooks{
				SetReceived:     func(source string, pods, faults int, _ time.Duration) { note("taken %s %d %d", source, pods, faults) },
				ChangeDelivered: func(op podsource.Op, source string, pods int) { note("told %s %s %d", op, source, pods) },
				SourceFailed:    func(source string, f podsource.SourceError) { note("faulted %s %s", source, f.Location) },
			},
		})
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- mux.Run(ctx) }()
		<-mux.Changes()
		for _, bad := range []string{
			secret + "  - x", strings.Replace(secret, "stringData", "data", 1), strings.Replace(secret, "{password: hunter2}", "[hunter2]", 1),
			strings.Replace(secret, "hunter2", "{a: hunter2}", 1), secret + "hunter2: hunter2\n",
		} {
			dir.write("s.yaml", bad)
			k.notify()
			time.Sleep(time.Second)
			require.Len(t, mux.Errors(), 1, bad)
			o, err := mux.Object(ctx, podspec.Ref{Kind: podspec.Secret, Namespace: "default", Name: "s"})
			require.NoError(t, err)
			assert.Equal(t, "hunter2", string(o.Data["password"]), "the last good one")
			assert.NotContains(t, strings.ReplaceAll(mux.Errors()[0].Error(), `unknown field "hunter2"`, ""), "hunter2")
		}
		dir.write("s.yaml", secret)
		k.notify()
		time.Sleep(time.Second)
		cancel()
		require.NoError(t, <-done)
		assert.ElementsMatch(t, []string{"taken file 1 0", "told ADD file 1"}, calls[:2])
		assert.Equal(t, []string{"faulted file m/s.yaml", "taken file 1 1"}, calls[2:4])
		assert.Contains(t, logged.String(), "msg=\"source error\"")
		assert.Equal(t, 1, strings.Count(logged.String(), "source error resolved"), "an error that has become another one is not resolved")
	})
}

// Questions may be asked from anywhere at any time; the race detector watches.
func TestMux_ConcurrentQueries(t *testing.T) {
	source := podsource.NewMemory()
	mux, err := podsource.New(podsource.Config{NodeName: "n", Sources: []podsource.NamedSource{{Name: "a", Source: source}}})
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	var wg sync.WaitGroup
	until := func(do func(i int)) {
		wg.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				do(i)
			}
		})
	}
	wg.Go(func() { assert.NoError(t, mux.Run(ctx)) })
	until(func(i int) {
		source.Put(pod(fmt.Sprint("p", i%50), []string{"1", "2", ""}[i%3]))
		source.Delete("default", fmt.Sprint("p", i*7%50))
	})
	until(func(int) {
		for _, p := range mux.Pods() {
			assert.NotEmpty(t, p.Spec.Containers[0].Image)
			mux.Pod(p.UID)
		}
		mux.Errors()
		mux.HasSynced("a")
		mux.MayBeDesired("a", "default", "p1")
		_, _ = mux.Object(ctx, podspec.Ref{Kind: podspec.Secret})
	})
	r := &reader{t: t, pods: map[types.UID]*corev1.Pod{}, from: map[types.UID]string{}}
	for ctx.Err() == nil {
		select {
		case c := <-mux.Changes():
			r.take(c)
		case <-ctx.Done():
		}
	}
	wg.Wait()
}

// A Memory keeps its order through puts of pods that are there and that are not,
// even twice in one call, against a plain list.
func TestMemory_MatchesModel(t *testing.T) {
	for seed := range uint64(30) {
		random := rand.New(rand.NewPCG(seed, 3))
		source := podsource.NewMemory()
		var list []string // name=image
		put := func(name, image string) {
			at := slices.IndexFunc(list, func(s string) bool { return strings.HasPrefix(s, name+"=") })
			if at < 0 {
				list = append(list, name+"="+image)
			} else {
				list[at] = name + "=" + image
			}
		}
		for i := range 60 {
			var pods []*corev1.Pod
			for range random.IntN(4) {
				pods = append(pods, podWithoutUID(fmt.Sprint("p", random.IntN(9)), fmt.Sprint(i, random.IntN(9))))
			}
			switch random.IntN(6) {
			case 0:
				list = nil
				source.Set(pods...)
			case 1:
				name := fmt.Sprint("p", random.IntN(9))
				was := len(list)
				list = slices.DeleteFunc(list, func(s string) bool { return strings.HasPrefix(s, name+"=") })
				require.Equal(t, len(list) < was, source.Delete("", name))
				pods = nil
			default:
				source.Put(pods...)
			}
			for _, p := range pods {
				put(p.Name, p.Spec.Containers[0].Image)
			}
			require.Equal(t, append([]string{}, list...), desiredPods(t, source), "seed %d, step %d", seed, i)
		}
	}
}

// desiredPods returns the pods of the current Set of a source.
func desiredPods(t *testing.T, source podsource.Source) []string {
	out := []string{}
	ctx, cancel := context.WithCancel(t.Context())
	require.NoError(t, source.Watch(ctx, func(s podsource.Set) {
		uids := map[types.UID]bool{}
		for _, m := range s.Pods {
			out = append(out, m.Pod.Name+"="+m.Pod.Spec.Containers[0].Image)
			uids[m.Pod.UID] = true
		}
		require.Len(t, uids, len(s.Pods), "each has a UID of its own")
		cancel()
	}))
	return out
}

// Deleted names leave nothing behind: an agent may run pods of new names for years.
func TestMemory_ForgetsDeletedPods(t *testing.T) {
	source := podsource.NewMemory()
	heap := func() uint64 {
		var stats runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&stats)
		return stats.HeapAlloc
	}
	before := heap()
	for i := range 50_000 {
		name := fmt.Sprint("pod-", i)
		source.Put(podWithoutUID(name, "1"))
		require.True(t, source.Delete("default", name))
	}
	after := heap()
	assert.Less(t, after, before+1<<20, "a few dozen bytes per name would be more")
	runtime.KeepAlive(source)
}
