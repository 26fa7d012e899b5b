package containergc_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/containergc"
	"github.com/sublet-dev/agent/internal/logtest"
	"github.com/sublet-dev/agent/runtime"
)

// left is a node with a stopped sandbox of a pod that no component knows any more. The
// runtime cannot remove the sandbox.
func left() *node {
	n := &node{pods: map[types.UID]*runtime.Pod{}, fail: map[string]error{"s0": errors.New("netns is not closed")}}
	n.pods["u1"] = &runtime.Pod{UID: "u1", Namespace: "ns", Name: "web", Sandboxes: []runtime.Sandbox{box("s0", 0, runtime.SandboxNotReady)}}
	return n
}

// CG-1: what the runtime cannot remove of a forgotten pod is tried again with back-off,
// however often a collection is requested.
func TestCollector_RetriesWithBackOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, forgotten := left(), fakePod{removable: true, cached: true, hasSandbox: true}
		var log logtest.Buffer
		var mu sync.Mutex
		var minutes []int
		startTime := time.Now()
		c := collector(t, containergc.Config{
			Containers: n, PodState: containergc.PodStates{Sources: forgotten, Workers: forgotten, Cache: forgotten}.State,
			Logger: slog.New(slog.NewTextHandler(&log, nil)),
			Hooks: containergc.Hooks{Removed: func(containergc.Removal, time.Duration, error) {
				mu.Lock()
				defer mu.Unlock()
				minutes = append(minutes, int(time.Since(startTime).Minutes()))
			}},
		})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- c.Run(ctx) }()
		for range 60 * 60 {
			c.RequestCollection()
			time.Sleep(time.Second)
		}
		mu.Lock()
		assert.Equal(t, []int{0, 1, 3, 7, 15, 30, 45}, minutes, "from a minute doubling to 15")
		mu.Unlock()
		assert.Equal(t, 7, strings.Count(log.String(), "container garbage collection failed"), "each failure is logged once")

		n.mu.Lock()
		n.fail = nil
		n.mu.Unlock()
		time.Sleep(15 * time.Minute)
		cancel()
		require.NoError(t, <-done)
		assert.Equal(t, []string{"s0"}, n.removed)
	})
}

// Who asks for a collection, or needs the space, does not wait.
func TestCollector_CollectIgnoresBackOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := left()
		c := collector(t, containergc.Config{Containers: n, PodState: podStates{"u1": containergc.PodDeleted}.of})
		ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
		defer cancel()
		require.NoError(t, c.Run(ctx))
		require.ErrorContains(t, c.Reclaim(t.Context()), "netns is not closed")
		_, err := c.Collect(t.Context())
		require.ErrorContains(t, err, "netns is not closed")
		n.fail = nil
		_, err = c.Collect(t.Context())
		require.NoError(t, err)
		assert.Equal(t, []string{"s0"}, n.removed)
	})
}

// A sandbox is kept while one of its containers waits for its next removal.
func TestCollector_KeepsSandboxDuringBackOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := crowded(2)
		n.pods["u1"].Sandboxes[0].State = runtime.SandboxNotReady
		n.fail["c0"] = errors.New("busy")
		c := collector(t, containergc.Config{Containers: n, PodState: podStates{"u1": containergc.PodDeleted}.of})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- c.Run(ctx) }()
		for range 2 {
			c.RequestCollection()
			time.Sleep(5 * time.Second)
		}
		cancel()
		require.NoError(t, <-done)
		assert.Equal(t, []string{"c1"}, n.removed)
	})
}

// hungRuntime does not answer when c0 is to be removed, and its client gives up after two minutes.
type hungRuntime struct{ *node }

func (h hungRuntime) RemoveContainer(ctx context.Context, id string) error {
	if id != "c0" {
		return h.node.RemoveContainer(ctx, id)
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	<-ctx.Done()
	return ctx.Err()
}

// CG-4: a container of which the runtime does not answer does not use up the time in which others
// could be removed from a full disk.
func TestCollector_ReclaimsWhatHangsLast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := crowded(2)
		n.pods["u1"].Sandboxes[0].State = runtime.SandboxNotReady
		state := podStates{"u1": containergc.PodDeleted, "u2": containergc.PodDesired}
		c := collector(t, containergc.Config{Containers: hungRuntime{n}, PodState: state.of})
		_, err := c.Collect(t.Context())
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Equal(t, []string{"c1"}, n.removed)

		n.removed = nil
		n.pods["u2"] = &runtime.Pod{UID: "u2", Namespace: "ns", Name: "old", Sandboxes: []runtime.Sandbox{box("s2", 0, runtime.SandboxNotReady)}, Containers: []runtime.Container{
			{ID: "d0", Name: "a", SandboxID: "s2", State: runtime.Exited, Created: testTime.Add(time.Hour)},
		}}
		state["u2"] = containergc.PodTerminated
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		require.ErrorIs(t, c.Reclaim(ctx), context.DeadlineExceeded)
		assert.Equal(t, []string{"d0", "s2"}, n.removed, "and the sandbox of the one that hangs is kept")
	})
}
