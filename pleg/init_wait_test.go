package pleg

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/runtime"
)

// newInitPod returns a pod whose first container has the given type and state.
func newInitPod(uid types.UID, kind runtime.ContainerType, state runtime.ContainerState) runtime.Pod {
	p := newTestPod(uid, state)
	p.Containers[0].Type = kind
	return p
}

// PL-11: the end of an init container is observed earlier than by the next relist.
func TestGenerator_InspectsInitContainers(t *testing.T) {
	for _, tt := range []struct {
		name     string
		kind     runtime.ContainerType
		watchErr error
		duration time.Duration // of the container
		want     time.Duration // at most, until its end is observed
		mayPoll  bool
	}{
		{"short", runtime.Init, runtime.ErrUnsupported, 30 * time.Millisecond, 10 * time.Millisecond, true},
		{"very short", runtime.Init, runtime.ErrUnsupported, 8 * time.Millisecond, 5 * time.Millisecond, true},
		{"long", runtime.Init, runtime.ErrUnsupported, 2 * time.Second, 500 * time.Millisecond, true},
		{"longer than the relist period matters", runtime.Init, runtime.ErrUnsupported, time.Minute, time.Second, true},
		{"regular container", runtime.Regular, runtime.ErrUnsupported, 300 * time.Millisecond, time.Second, false},
		{"sidecar", runtime.Sidecar, runtime.ErrUnsupported, 300 * time.Millisecond, time.Second, false},
		{"with an event stream", runtime.Init, nil, 300 * time.Millisecond, 0, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			rt := newFakeRuntime()
			rt.watchErr = tt.watchErr
			inBubble(t, rt, Config{}, func(env *testEnv) {
				env.after(1500 * time.Millisecond) // half-way between two relists
				rt.set(newInitPod("a", tt.kind, runtime.Running), false)
				env.SyncStarted("a")
				env.SyncEnded("a", true)
				env.after(tt.duration)
				before := rt.inspectionsOf("a")
				assert.Equal(t, tt.mayPoll, before > 1, "%d inspections", before)
				assert.Less(t, before, 32)
				env.Drain()
				rt.set(newInitPod("a", tt.kind, runtime.Exited), tt.watchErr == nil)
				env.after(tt.want)
				assert.Equal(t, []EventType{ContainerDied}, env.eventTypes())
				after := rt.inspectionsOf("a")
				env.after(2 * time.Second)
				assert.Equal(t, after, rt.inspectionsOf("a"), "nothing is waited for any more")
				assert.Zero(t, env.initWaits)
			})
		})
	}
}

// PL-11: the rate of inspections does not grow with the number of pods.
func TestGenerator_BoundsInspectionsOfInitContainers(t *testing.T) {
	rt := newFakeRuntime()
	rt.watchErr = runtime.ErrUnsupported
	const pods = 500
	inBubble(t, rt, Config{}, func(env *testEnv) {
		env.after(1500 * time.Millisecond)
		for i := range pods {
			uid := types.UID(fmt.Sprint(i))
			rt.set(newInitPod(uid, runtime.Init, runtime.Running), false)
			env.RequestInspection(uid)
		}
		env.after(0)
		_, before, _ := rt.total()
		assert.Equal(t, pods, before)
		env.after(time.Second)
		_, after, _ := rt.total()
		assert.Greater(t, after, before)
		assert.LessOrEqual(t, after-before, 60)
		env.after(30 * time.Second)
		assert.Zero(t, env.initWaits, "containers that have run for long do not count")
		rt.set(newInitPod("short", runtime.Init, runtime.Running), false)
		env.RequestInspection("short")
		env.after(5 * time.Millisecond)
		assert.Equal(t, 2, rt.inspectionsOf("short"))
	})
}

// While its worker syncs a pod, the pod is not inspected for an init container: the worker has it inspected at the end.
func TestGenerator_DefersInspectionsOfInitContainers(t *testing.T) {
	rt := newFakeRuntime()
	rt.watchErr = runtime.ErrUnsupported
	inBubble(t, rt, Config{}, func(env *testEnv) {
		env.after(1500 * time.Millisecond)
		rt.set(newInitPod("a", runtime.Init, runtime.Running), false)
		env.RequestInspection("a")
		env.after(0)
		env.SyncStarted("a")
		env.after(300 * time.Millisecond)
		assert.Equal(t, 1, rt.inspectionsOf("a"))
		rt.set(newInitPod("a", runtime.Init, runtime.Exited), false)
		env.SyncEnded("a", false)
		env.after(0)
		assert.Equal(t, 2, rt.inspectionsOf("a"))
		assert.Equal(t, []EventType{ContainerStarted, ContainerStarted, ContainerDied}, env.eventTypes())
	})
}
