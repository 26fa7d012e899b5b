package podcache

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/internal/leaktest"
	"github.com/sublet-dev/agent/runtime"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

func newTestPod(name string) runtime.Pod { return runtime.Pod{UID: "u", Name: name} }

// PL-6: readers see the last good state together with the error.
func TestCache_Set(t *testing.T) {
	testTime := time.Unix(1000, 0)
	errInspect := errors.New("inspection failed")
	for _, tt := range []struct {
		name string
		set  func(*Cache)
		want Entry
		ok   bool
	}{
		{"an unknown pod has no entry", func(*Cache) {}, Entry{}, false},
		{"keeps the pod and the time", func(c *Cache) {
			c.Set("u", newTestPod("a"), nil, testTime)
		}, Entry{newTestPod("a"), nil, testTime}, true},
		{"another pod has its own time", func(c *Cache) {
			c.Set("u", newTestPod("a"), nil, testTime)
			c.Set("v", newTestPod("b"), nil, testTime.Add(time.Hour))
		}, Entry{newTestPod("a"), nil, testTime}, true},
		{"keeps the last good state beside an error", func(c *Cache) {
			c.Set("u", newTestPod("a"), nil, testTime)
			c.Set("u", runtime.Pod{}, errInspect, testTime.Add(time.Second))
		}, Entry{newTestPod("a"), errInspect, testTime.Add(time.Second)}, true},
		{"has only the UID if the first inspection fails", func(c *Cache) {
			c.Set("u", newTestPod("ignored"), errInspect, testTime)
		}, Entry{runtime.Pod{UID: "u"}, errInspect, testTime}, true},
		{"a success clears the error", func(c *Cache) {
			c.Set("u", runtime.Pod{}, errInspect, testTime)
			c.Set("u", newTestPod("a"), nil, testTime.Add(time.Second))
		}, Entry{newTestPod("a"), nil, testTime.Add(time.Second)}, true},
		{"an older inspection does not replace a newer one", func(c *Cache) {
			c.Set("u", newTestPod("new"), nil, testTime.Add(time.Second))
			c.Set("u", newTestPod("old"), nil, testTime)
		}, Entry{newTestPod("new"), nil, testTime.Add(time.Second)}, true},
		{"the later call wins at equal times", func(c *Cache) {
			c.Set("u", newTestPod("first"), nil, testTime)
			c.Set("u", newTestPod("second"), nil, testTime)
		}, Entry{newTestPod("second"), nil, testTime}, true},
		{"a deleted pod is unknown", func(c *Cache) {
			c.Set("u", newTestPod("a"), nil, testTime)
			c.Delete("u")
		}, Entry{}, false},
		{"a deleted pod can be set with an older time", func(c *Cache) {
			c.Set("u", newTestPod("new"), nil, testTime.Add(time.Second))
			c.Delete("u")
			c.Set("u", newTestPod("old"), nil, testTime)
		}, Entry{newTestPod("old"), nil, testTime}, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var c Cache
			tt.set(&c)
			got, ok := c.Entry("u")
			assert.Equal(t, tt.ok, ok)
			assert.Equal(t, tt.want, got)
			pod, ok := c.Get("u")
			assert.Equal(t, tt.ok, ok)
			assert.Equal(t, tt.want.Pod, pod)
		})
	}
}

func TestCache_Pods(t *testing.T) {
	var c Cache
	assert.Empty(t, c.Pods())
	c.Set("a", runtime.Pod{UID: "a"}, nil, time.Unix(1, 0))
	c.Set("b", runtime.Pod{}, errors.New("inspection failed"), time.Unix(1, 0))
	assert.ElementsMatch(t, []runtime.Pod{{UID: "a"}, {UID: "b"}}, c.Pods())
	c.Delete("a")
	assert.Equal(t, []runtime.Pod{{UID: "b"}}, c.Pods())
}

// TestCache_RandomSequences compares concurrent writes with the newest write of
// each pod.
func TestCache_RandomSequences(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 1))
	var c Cache
	var wg sync.WaitGroup
	newest := map[types.UID]time.Time{}
	for range 1000 {
		uid := types.UID(fmt.Sprint(rnd.IntN(3)))
		at := time.Unix(int64(rnd.IntN(1000)), 0)
		if at.After(newest[uid]) {
			newest[uid] = at
		}
		wg.Go(func() { c.Set(uid, runtime.Pod{UID: uid, ObservedAt: at}, nil, at) })
		wg.Go(func() {
			if e, ok := c.Entry(uid); ok {
				assert.Equal(t, e.InspectedAt, e.Pod.ObservedAt)
			}
		})
	}
	wg.Wait()
	require.Len(t, c.Pods(), len(newest))
	for _, p := range c.Pods() {
		assert.Equal(t, newest[p.UID], p.ObservedAt)
	}
}

func ExampleCache() {
	var c Cache
	inspectedAt := time.Now()
	c.Set("uid-1", runtime.Pod{UID: "uid-1", Name: "web"}, nil, inspectedAt)
	c.Set("uid-1", runtime.Pod{}, errors.New("runtime unavailable"), inspectedAt.Add(time.Second))
	e, ok := c.Entry("uid-1")
	fmt.Println(e.Pod.Name, e.Err, ok)
	// Output: web runtime unavailable true
}

func BenchmarkCache_Set(b *testing.B) {
	for _, n := range []int{100, 1000, 10000} {
		b.Run(fmt.Sprintf("pods=%d", n), func(b *testing.B) {
			var c Cache
			uids := make([]types.UID, n)
			for i := range uids {
				uids[i] = types.UID(fmt.Sprint(i))
				c.Set(uids[i], runtime.Pod{UID: uids[i]}, nil, time.Unix(1, 0))
			}
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				c.Set(uids[i%n], runtime.Pod{UID: uids[i%n]}, nil, time.Unix(int64(2+i), 0))
				i++
			}
		})
	}
}

// What reads all pods need not do so again while the number of changes is the same.
func TestCache_Changes(t *testing.T) {
	var c Cache
	changes := Lister{&c}.Changes()
	for _, step := range []struct {
		name   string
		change func()
	}{
		{"a new pod", func() { c.Set("u", newTestPod("a"), nil, time.Unix(1000, 0)) }},
		{"another state", func() { c.Set("u", newTestPod("b"), nil, time.Unix(2000, 0)) }},
		{"a failure", func() { c.Set("u", runtime.Pod{}, errors.New("inspection failed"), time.Unix(3000, 0)) }},
		{"a deleted pod", func() { c.Delete("u") }},
	} {
		step.change()
		assert.NotEqual(t, changes, c.Changes(), step.name)
		changes = c.Changes()
	}
	c.Set("v", newTestPod("new"), nil, time.Unix(2000, 0))
	changes = c.Changes()
	c.Set("v", newTestPod("old"), nil, time.Unix(1000, 0))
	assert.Equal(t, changes, Lister{&c}.Changes(), "an older inspection")
}
