package pleg

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/sublet-dev/agent/runtime"
)

// PL-2, PL-9
func TestDifference(t *testing.T) {
	limits := func(cpu string) *runtime.Resources {
		q := resource.MustParse(cpu)
		return &runtime.Resources{CPULimit: &q}
	}
	c := func(id, name string, attempt uint32, s runtime.ContainerState) runtime.Container {
		return runtime.Container{ID: id, Name: name, Attempt: attempt, State: s}
	}
	sb := func(id string, s runtime.SandboxState, ips ...string) []runtime.Sandbox {
		return []runtime.Sandbox{{ID: id, State: s, IPs: ips}}
	}
	died := c("1", "a", 0, runtime.Exited)
	died.ExitCode = 137
	small, large := c("1", "a", 0, runtime.Running), c("1", "a", 0, runtime.Running)
	small.Resources, large.Resources = limits("1"), limits("2")
	alike := small
	alike.Resources = limits("1000m")
	for _, tt := range []struct {
		name     string
		old, now runtime.Pod
		want     []string
	}{
		{"nothing", runtime.Pod{}, runtime.Pod{}, nil},
		{
			"another address together with a transition needs no PodSync",
			runtime.Pod{Sandboxes: sb("s", runtime.SandboxReady, "10.0.0.1"), Containers: []runtime.Container{c("1", "a", 0, runtime.Running)}},
			runtime.Pod{Sandboxes: sb("s", runtime.SandboxReady, "10.0.0.2"), Containers: []runtime.Container{died}},
			[]string{"ContainerDied pod=u container=a/0 id=1 exit=137"},
		},
		{
			"first observed running",
			runtime.Pod{},
			runtime.Pod{Sandboxes: sb("s", runtime.SandboxReady), Containers: []runtime.Container{c("1", "a", 0, runtime.Running)}},
			[]string{"ContainerStarted pod=u sandbox=0 id=s", "ContainerStarted pod=u container=a/0 id=1"},
		},
		{
			"created",
			runtime.Pod{},
			runtime.Pod{Containers: []runtime.Container{c("1", "a", 0, runtime.Created)}},
			[]string{"ContainerChanged pod=u container=a/0 id=1"},
		},
		{
			"created, then started",
			runtime.Pod{Containers: []runtime.Container{c("1", "a", 0, runtime.Created)}},
			runtime.Pod{Containers: []runtime.Container{c("1", "a", 0, runtime.Running)}},
			[]string{"ContainerStarted pod=u container=a/0 id=1"},
		},
		{
			"died with its exit code",
			runtime.Pod{Containers: []runtime.Container{c("1", "a", 0, runtime.Running)}},
			runtime.Pod{Containers: []runtime.Container{died}},
			[]string{"ContainerDied pod=u container=a/0 id=1 exit=137"},
		},
		{
			"created and exited between two inspections",
			runtime.Pod{},
			runtime.Pod{Containers: []runtime.Container{died}},
			[]string{"ContainerDied pod=u container=a/0 id=1 exit=137"},
		},
		{
			"removed before an inspection found it exited",
			runtime.Pod{Containers: []runtime.Container{c("1", "a", 0, runtime.Running)}},
			runtime.Pod{},
			[]string{"ContainerDied pod=u container=a/0 id=1", "ContainerRemoved pod=u container=a/0 id=1"},
		},
		{
			"removed after it exited",
			runtime.Pod{Containers: []runtime.Container{died}},
			runtime.Pod{},
			[]string{"ContainerRemoved pod=u container=a/0 id=1"},
		},
		{
			"restarted: died comes before started",
			runtime.Pod{Containers: []runtime.Container{c("1", "a", 0, runtime.Running)}},
			runtime.Pod{Containers: []runtime.Container{c("2", "a", 1, runtime.Running), died}},
			[]string{"ContainerDied pod=u container=a/0 id=1 exit=137", "ContainerStarted pod=u container=a/1 id=2"},
		},
		{
			"an attempt that no inspection found was removed",
			runtime.Pod{Containers: []runtime.Container{died}},
			runtime.Pod{Containers: []runtime.Container{c("3", "a", 2, runtime.Running), died}},
			[]string{"ContainerRemoved pod=u container=a/1", "ContainerStarted pod=u container=a/2 id=3"},
		},
		{
			"restarted and the previous attempt removed",
			runtime.Pod{Containers: []runtime.Container{died}},
			runtime.Pod{Containers: []runtime.Container{c("2", "a", 1, runtime.Running)}},
			[]string{"ContainerRemoved pod=u container=a/0 id=1", "ContainerStarted pod=u container=a/1 id=2"},
		},
		{
			"an attempt that the runtime still has was not removed",
			runtime.Pod{Containers: []runtime.Container{died}},
			runtime.Pod{Containers: []runtime.Container{c("3", "a", 2, runtime.Running), c("2", "a", 1, runtime.Exited), died}},
			[]string{"ContainerDied pod=u container=a/1 id=2 exit=0", "ContainerStarted pod=u container=a/2 id=3"},
		},
		{
			"the attempt of another container does not count",
			runtime.Pod{Containers: []runtime.Container{died, c("4", "b", 1, runtime.Running)}},
			runtime.Pod{Containers: []runtime.Container{c("3", "a", 2, runtime.Running), died, c("4", "b", 1, runtime.Running)}},
			[]string{"ContainerRemoved pod=u container=a/1", "ContainerStarted pod=u container=a/2 id=3"},
		},
		{
			"state became unknown",
			runtime.Pod{Containers: []runtime.Container{c("1", "a", 0, runtime.Running)}},
			runtime.Pod{Containers: []runtime.Container{c("1", "a", 0, runtime.Unknown)}},
			[]string{"ContainerChanged pod=u container=a/0 id=1"},
		},
		{
			"resized in place",
			runtime.Pod{Containers: []runtime.Container{small}},
			runtime.Pod{Containers: []runtime.Container{large}},
			[]string{"ContainerChanged pod=u container=a/0 id=1"},
		},
		{
			"the same quantity in another format",
			runtime.Pod{Containers: []runtime.Container{small}},
			runtime.Pod{Containers: []runtime.Container{alike}},
			nil,
		},
		{
			"lost its IP address",
			runtime.Pod{Sandboxes: sb("s", runtime.SandboxReady, "10.0.0.1")},
			runtime.Pod{Sandboxes: sb("s", runtime.SandboxReady)},
			[]string{"PodSync pod=u"},
		},
		{
			"a sandbox that is not ready has died",
			runtime.Pod{Sandboxes: sb("s", runtime.SandboxReady)},
			runtime.Pod{Sandboxes: sb("s", runtime.SandboxNotReady)},
			[]string{"ContainerDied pod=u sandbox=0 id=s"},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tt.old.UID, tt.now.UID = "u", "u"
			var got []string
			for _, e := range difference(tt.old, tt.now) {
				got = append(got, e.String())
			}
			assert.Equal(t, tt.want, got)
		})
	}
}

// randomPod returns a random pod made of few ids, so that two pods overlap.
func randomPod(rnd *rand.Rand, maxContainers int) runtime.Pod {
	p := runtime.Pod{UID: "u"}
	for _, i := range rnd.Perm(4)[:rnd.IntN(4)] {
		s := runtime.Sandbox{ID: fmt.Sprint("s", i), Attempt: uint32(i), State: runtime.SandboxState(rnd.IntN(2))}
		p.Sandboxes = append(p.Sandboxes, s)
	}
	for _, i := range rnd.Perm(maxContainers)[:rnd.IntN(maxContainers)] {
		p.Containers = append(p.Containers, runtime.Container{
			ID: fmt.Sprint(i), Name: fmt.Sprint("c", i%3), Attempt: uint32(i / 3),
			State: runtime.ContainerState(rnd.IntN(4)), ExitCode: int32(rnd.IntN(3)),
		})
	}
	return p
}

// eventReplay is the state that a reader derives from events alone.
type eventReplay map[string]runtime.ContainerState

// stateOf returns the expected eventReplay of a pod.
func stateOf(p runtime.Pod) eventReplay {
	f := eventReplay{}
	for _, s := range p.Sandboxes {
		f[s.ID] = runtime.Exited
		if s.State == runtime.SandboxReady {
			f[s.ID] = runtime.Running
		}
	}
	for _, c := range p.Containers {
		f[c.ID] = c.State
	}
	return f
}

// apply applies an event. It fails for an event that changes nothing or
// contradicts the state.
func (f eventReplay) apply(t require.TestingT, e Event) {
	if e.ID == "" {
		return
	}
	was, known := f[e.ID]
	switch e.Type {
	case ContainerStarted:
		require.False(t, known && was == runtime.Running, "started twice: %v", e)
		require.Equal(t, runtime.Running, e.State)
	case ContainerDied:
		require.False(t, known && was == runtime.Exited, "died twice: %v", e)
		if e.State == runtime.Unknown {
			e.State = runtime.Exited
		}
	case ContainerChanged:
		require.Contains(t, []runtime.ContainerState{runtime.Created, runtime.Unknown}, e.State)
		require.False(t, known && was == e.State, "changed twice: %v", e)
	case ContainerRemoved:
		require.True(t, known, "removed an unknown container: %v", e)
		require.Equal(t, runtime.Exited, was, "removed while running: %v", e)
		delete(f, e.ID)
		return
	case PodSync:
		require.Fail(t, "a PodSync has no id", "%v", e)
	}
	f[e.ID] = e.State
}

// PL-2: for any two states the events lead from one to the other, with each
// transition once.
func TestDifference_RandomSequences(t *testing.T) {
	for seed := range uint64(5000) {
		rnd := rand.New(rand.NewPCG(seed, 7))
		maxContainers := []int{6, 40}[seed%2] // short lists are searched, long ones indexed
		old, now := randomPod(rnd, maxContainers), randomPod(rnd, maxContainers)
		f := stateOf(old)
		for _, e := range difference(old, now) {
			require.Equal(t, old.UID, e.UID)
			f.apply(t, e)
		}
		require.Equal(t, stateOf(now), f, "seed %d", seed)
		require.Empty(t, difference(now, now), "seed %d", seed)
	}
}

func FuzzDifference(f *testing.F) {
	f.Add(uint64(1), uint64(2), byte(5))
	f.Fuzz(func(t *testing.T, a, b uint64, most byte) {
		n := 1 + int(most)
		old, now := randomPod(rand.New(rand.NewPCG(a, 1)), n), randomPod(rand.New(rand.NewPCG(b, 1)), n)
		known := stateOf(old)
		for _, e := range difference(old, now) {
			known.apply(t, e)
		}
		require.Equal(t, stateOf(now), known)
	})
}

// Two states have the same fingerprint if a relist cannot distinguish them.
func TestGenerator_Fingerprint(t *testing.T) {
	g, err := New(Config{Runtime: newFakeRuntime(), Cache: discardCache{}})
	require.NoError(t, err)
	assert.Zero(t, g.fingerprint(&runtime.Pod{UID: "u"}))
	for seed := range uint64(2000) {
		rnd := rand.New(rand.NewPCG(seed, 9))
		a, b := randomPod(rnd, 4), randomPod(rnd, 4)
		assert.Equal(t, assert.ObjectsAreEqual(stateOf(a), stateOf(b)), g.fingerprint(&a) == g.fingerprint(&b), "%v %v", a, b)
		rnd.Shuffle(len(a.Containers), func(i, j int) {
			a.Containers[i], a.Containers[j] = a.Containers[j], a.Containers[i]
		})
		c := a
		c.Name = "not in relists"
		assert.Equal(t, g.fingerprint(&a), g.fingerprint(&c))
	}
}

// PL-2: each resource that can be changed in place has an event.
func TestDifference_Resources(t *testing.T) {
	one, two := resource.MustParse("1Gi"), resource.MustParse("2Gi")
	withResources := func(r *runtime.Resources) runtime.Pod {
		return runtime.Pod{UID: "u", Containers: []runtime.Container{{ID: "1", Name: "a", State: runtime.Running, Resources: r}}}
	}
	for name, set := range map[string]func(*runtime.Resources, *resource.Quantity){
		"CPU request":    func(r *runtime.Resources, q *resource.Quantity) { r.CPURequest = q },
		"CPU limit":      func(r *runtime.Resources, q *resource.Quantity) { r.CPULimit = q },
		"memory request": func(r *runtime.Resources, q *resource.Quantity) { r.MemoryRequest = q },
		"memory limit":   func(r *runtime.Resources, q *resource.Quantity) { r.MemoryLimit = q },
	} {
		var none, small, large runtime.Resources
		set(&small, &one)
		set(&large, &two)
		assert.Len(t, difference(withResources(&small), withResources(&large)), 1, name)
		assert.Len(t, difference(withResources(&none), withResources(&small)), 1, name)
		assert.Len(t, difference(withResources(&small), withResources(&none)), 1, name)
		assert.Len(t, difference(withResources(nil), withResources(&small)), 1, name)
		assert.Len(t, difference(withResources(&small), withResources(nil)), 1, name)
		assert.Empty(t, difference(withResources(&small), withResources(&small)), name)
	}
}
