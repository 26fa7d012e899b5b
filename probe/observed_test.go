package probe

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/runtime"
)

// A state of a pod that was read from the cache before a newer one does not restart the
// probes of a container that has been replaced.
func TestPod_IgnoresOlderState(t *testing.T) {
	now := time.Now()
	state := func(id string, at time.Time) runtime.Pod {
		return runtime.Pod{ObservedAt: at, Containers: []runtime.Container{{ID: id, Name: "a", State: runtime.Running}}}
	}
	p := &pod{}
	b := &probe{key: key{name: "a"}, pod: p}
	p.observe(state("old", now))
	assert.Equal(t, "old", b.running().ID)
	p.observe(state("new", now.Add(time.Second)))
	p.observe(state("old", now))
	assert.Equal(t, "new", b.running().ID)
	p.observe(state("same", now.Add(time.Second)))
	assert.Equal(t, "same", b.running().ID, "as new as the previous one")
}

// callingCache calls the Manager back when it is read.
type callingCache struct {
	*fakeNode
	m **Manager
}

func (c callingCache) Get(uid types.UID) (runtime.Pod, bool) {
	(*c.m).Drain()
	return c.fakeNode.Get(uid)
}

// The cache is read without a lock, by pods that were added before Run and after.
func TestManager_CacheMayCallTheManager(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode()
		n.set("before", "1", runtime.Running)
		n.set("after", "2", runtime.Running)
		var m *Manager
		m, err := New(Config{PodCache: callingCache{n, &m}, Execer: n, Dial: n.dial})
		require.NoError(t, err)
		m.AddPod(podOf("before", every(10, command("before")), every(10, command("before")), nil))
		m.RemovePod("unknown")
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- m.Run(ctx) }()
		m.AddPod(podOf("after", every(10, command("after")), nil, nil))
		time.Sleep(5 * time.Second)
		ran := map[string]int{}
		for _, e := range n.runs() {
			ran[e.cmd[0]]++
		}
		assert.Equal(t, map[string]int{"before": 2, "after": 1}, ran)
		assert.Equal(t, runtime.ProbeSuccess, m.Results("before")["1"].Readiness)
		cancel()
		require.NoError(t, <-done)
	})
}

// A container of a runtime without sandbox ids is in the newest sandbox, as it is for the plan of its pod.
func TestTarget_WithoutSandboxID(t *testing.T) {
	m, err := New(Config{PodCache: newNode()})
	require.NoError(t, err)
	spec := podOf("u", nil, nil, nil)
	observed := runtime.Pod{Sandboxes: []runtime.Sandbox{{ID: "new", IPs: []string{"10.0.0.1"}}, {ID: "old", IPs: []string{"10.0.0.9"}}}}
	b := &probe{pod: &pod{spec: spec, observed: observed}, container: &spec.Spec.Containers[0]}
	assert.Equal(t, "10.0.0.1", m.target(b, &runtime.Container{ID: "1"}).ip)
}
