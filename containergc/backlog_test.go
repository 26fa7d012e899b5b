package containergc_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	goruntime "runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/containergc"
	"github.com/sublet-dev/agent/internal/owner"
	"github.com/sublet-dev/agent/runtime"
)

// CG-1, RT-18: removing 20,000 dead containers takes minutes, at a pace that
// leaves the runtime to others. No caller waits for the end of it: neither a pod
// that goes meanwhile, nor eviction, which needs the disk now.
func TestCollector_ReclaimPreemptsPacedCollection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, stands := crowded(20_000), podStates{}
		var mu sync.Mutex
		c := collector(t, containergc.Config{Containers: n, PodState: func(uid types.UID) containergc.PodState {
			mu.Lock()
			defer mu.Unlock()
			return stands[uid]
		}})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- c.Run(ctx) }()
		c.RequestCollection()
		time.Sleep(15 * time.Second) // its list is 4 s old
		before := n.left()
		assert.InDelta(t, 20_000-14.5*50, before, 5, "at its pace")

		n.mu.Lock()
		n.pods["u2"] = &runtime.Pod{UID: "u2", Sandboxes: []runtime.Sandbox{box("s2", 0, runtime.SandboxNotReady)}}
		n.mu.Unlock()
		mu.Lock()
		stands["u2"] = containergc.PodDeleted
		mu.Unlock()
		c.RequestCollection()
		time.Sleep(time.Second)
		n.mu.Lock()
		assert.True(t, n.deleted["s2"], "a pod that is gone goes within a second")
		n.mu.Unlock()

		// Pods that keep ending ask again and again: the backlog gets shorter all the same.
		before = n.left()
		lists := n.listed()
		for range 1000 {
			c.RequestCollection()
			time.Sleep(10 * time.Millisecond)
		}
		assert.Less(t, n.left(), before-400)
		assert.Less(t, n.listed(), lists+25, "and is planned anew twice a second, not for each")

		time.Sleep(2 * time.Second)
		began := time.Now()
		require.NoError(t, c.Reclaim(t.Context()))
		assert.LessOrEqual(t, time.Since(began), 20*time.Millisecond, "all of it, at once")
		assert.Equal(t, 1, n.left())
		cancel()
		require.NoError(t, <-ended)
		assert.Zero(t, n.twice)
	})
}

// kept remembers one view of each listing without keeping it.
type kept struct {
	*node

	views []weak.Pointer[runtime.Container]
}

func (k *kept) Pods(ctx context.Context) ([]runtime.Pod, error) {
	pods, err := k.node.Pods(ctx)
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(pods) > 0 && len(pods[0].Containers) > 0 {
		k.views = append(k.views, weak.Make(&pods[0].Containers[0]))
	}
	return pods, err
}

func (k *kept) alive() (n int) {
	goruntime.GC()
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, v := range k.views {
		if v.Value() != nil {
			n++
		}
	}
	return n
}

// CG-1, RT-18: when thousands of pods end at once, each removes what is its own
// while the collector comes to it at its pace. What went without it is neither
// asked for again one by one nor kept in memory for the minutes that would take.
func TestCollector_ForgetsOldLists(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := &kept{node: crowded(20_000)}
		k.fail["c1"] = errors.New("boom")
		var ended []containergc.Result
		c := collector(t, containergc.Config{Containers: k, PodState: podStates{}.of, Hooks: containergc.Hooks{
			Collected: func(r containergc.Result, _ error) { ended = append(ended, r) },
		}})
		go func() { _ = c.Run(t.Context()) }()
		c.RequestCollection()
		time.Sleep(25 * time.Second)
		assert.Equal(t, 1, k.alive(), "the last look alone")

		k.mu.Lock()
		for i := range 20_000 {
			k.deleted[fmt.Sprint("c", i)] = true
		}
		k.mu.Unlock()
		time.Sleep(10 * time.Second)
		synctest.Wait()
		assert.Zero(t, k.alive())
		assert.LessOrEqual(t, k.twice, 500, "what a look still showed")
		require.Len(t, ended, 1, "it is done")
	})
}

// What is slower than what was seen gets stale comes to its end all the same.
func TestCollector_SlowPace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := crowded(10)
		began := time.Now()
		_, err := collector(t, containergc.Config{Containers: n, PodState: podStates{}.of, RemovalInterval: time.Minute}).Collect(t.Context())
		require.NoError(t, err)
		assert.Equal(t, 1, n.left())
		assert.Equal(t, 8*time.Minute, time.Since(began), "nine removals")
		assert.LessOrEqual(t, n.listed(), 9, "one for each")
	})
}

// crashingRuntime is a runtime whose caller dies during a call: before it had its effect,
// or after. As every goroutine of a process ends where it is, so does the caller.
type crashingRuntime struct {
	*node

	calls, at int // dies in call number at, if that is not 0
	after     bool
}

func (k *crashingRuntime) die(call func() error) error {
	if k.calls++; k.calls != k.at {
		return call()
	}
	if k.after {
		_ = call()
	}
	goruntime.Goexit()
	return nil
}

func (k *crashingRuntime) RemoveContainer(ctx context.Context, id string) error {
	return k.die(func() error { return k.node.RemoveContainer(ctx, id) })
}

func (k *crashingRuntime) RemoveSandbox(ctx context.Context, id string) error {
	return k.die(func() error { return k.node.RemoveSandbox(ctx, id) })
}

// CG-1, CG-2: killed in any call, a collection is taken up by the next process,
// which removes what is left, nothing again, and all the logs.
func TestCollector_AfterCrash(t *testing.T) {
	for at := 1; ; at++ {
		died := false
		for _, after := range []bool{false, true} {
			t.Run(fmt.Sprintf("call %d, after it: %v", at, after), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { died = crash(t, at, after) })
			})
		}
		if !died {
			require.Equal(t, 6, at, "three containers, one of the pod that is gone, its sandbox")
			return
		}
	}
}

func crash(t *testing.T, at int, after bool) (died bool) {
	dir := t.TempDir()
	n := crowded(4)
	n.pods["u2"] = &runtime.Pod{
		UID: "u2", Namespace: "ns", Name: "job", Sandboxes: []runtime.Sandbox{box("d", 0, runtime.SandboxNotReady)},
		Containers: []runtime.Container{ctr("d0", "a", "d", 0, runtime.Exited, 50)},
	}
	log := func(podDir string, attempt int) string {
		path := filepath.Join(dir, podDir, "a", fmt.Sprint(attempt, ".log"))
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		for _, name := range []string{path, path + ".20260101-000000.gz"} {
			require.NoError(t, os.WriteFile(name, []byte("x"), 0o600))
		}
		return path
	}
	var logs []string
	for i := range 4 {
		logs = append(logs, log("ns_web_u1", i))
	}
	log("ns_job_u2", 0)
	root, err := os.OpenRoot(dir)
	require.NoError(t, err)
	require.NoError(t, errors.Join(owner.Mark(root, "ns_job_u2", "one"), root.Close()))
	cfg := containergc.Config{Containers: &crashingRuntime{node: n, at: at, after: after}, LogsDir: dir, Owner: func() string { return "one" }, PodState: podStates{"u2": containergc.PodDeleted}.of}

	previous := collector(t, cfg)
	died = true
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, err := previous.Collect(t.Context())
		assert.NoError(t, err)
		died = false
	}()
	<-done
	cfg.Containers = n
	cfg.Hooks.Removed = func(r containergc.Removal, _ time.Duration, err error) { assert.NoError(t, err, "%+v", r) }
	_, err = collector(t, cfg).Collect(t.Context())
	require.NoError(t, err)
	assert.Equal(t, 1, n.left())
	assert.NotContains(t, n.pods, types.UID("u2"))
	assert.Zero(t, n.twice, "nothing is removed again")
	assert.FileExists(t, logs[3])
	for _, path := range logs[:3] {
		left, err := filepath.Glob(path + "*")
		require.NoError(t, err)
		assert.Empty(t, left)
	}
	assert.NoDirExists(t, filepath.Join(dir, "ns_job_u2"))
	return died
}

// A log that cannot be removed does not keep its container: the error is reported and the
// container is removed.
func TestCollector_ReportsLogsThatStay(t *testing.T) {
	dir := t.TempDir()
	stuck := filepath.Join(dir, "ns_web_u1", "a", "0.log")
	require.NoError(t, os.MkdirAll(filepath.Join(stuck, "full"), 0o755)) // a directory that is not empty
	n := crowded(2)
	c := collector(t, containergc.Config{Containers: n, LogsDir: dir, PodState: podStates{}.of})
	_, err := c.Collect(t.Context())
	require.ErrorContains(t, err, "remove log of container c0")
	assert.Equal(t, 1, n.left())
	boom := errors.New("boom")
	n = crowded(2)
	n.fail["c0"] = boom
	_, err = collector(t, containergc.Config{Containers: n, PodState: podStates{}.of}).Collect(t.Context())
	require.ErrorIs(t, err, boom)
}
