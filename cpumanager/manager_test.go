package cpumanager_test

import (
	"errors"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/cpumanager"
	"github.com/sublet-dev/agent/runtime"
	"github.com/sublet-dev/agent/topology"
)

func TestExclusiveCPUs(t *testing.T) {
	burstable := pod("b", container("c", "2"), corev1.Container{Name: "other"})
	podLevel, empty := pod("l", container("c", "2")), pod("e", container("c", "2"))
	podLevel.Spec.Resources = &corev1.ResourceRequirements{Requests: podLevel.Spec.Containers[0].Resources.Limits, Limits: podLevel.Spec.Containers[0].Resources.Limits}
	empty.Spec.Resources = &corev1.ResourceRequirements{}
	for name, tt := range map[string]struct {
		pod  *corev1.Pod
		want int
	}{
		"whole CPUs of a Guaranteed pod": {pod("w", container("c", "2")), 2},
		"a part of a CPU":                {shares("s"), 0},
		"a Burstable pod":                {burstable, 0},
		"no request":                     {pod("n", corev1.Container{Name: "c"}), 0},
		"resources of the pod":           {podLevel, 0},
		"no resources of the pod":        {empty, 2},
		"more than any machine has":      {pod("m", container("c", "2000000")), 0},
	} {
		require.Equal(t, tt.want, cpumanager.ExclusiveCPUs(tt.pod, &tt.pod.Spec.Containers[0]), name)
	}
}

// Exclusive CPUs belong to one container until its pod has ended, and the others share the
// rest, to which running ones are moved.
func TestManager_AssignsCPUs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt := new(fakeRuntime)
		old := shares("old")
		rt.run(old, "0-3")
		var assigned []string
		m := newManager(t, newMachine(1, 4), stateFile(t), func(cfg *cpumanager.Config) {
			cfg.Hooks.Assigned = func(uid types.UID, c string, cpus topology.Set) {
				assigned = append(assigned, string(uid)+"/"+c+"="+cpus.String())
			}
		})
		start(t, m, rt)
		synctest.Wait()
		require.Empty(t, rt.taken(), "it is where it should be")

		one, two := pod("one", container("c", "1")), pod("two", container("c", "2"))
		require.Equal(t, "1", inject(t, m, one))
		synctest.Wait()
		require.Equal(t, []string{"old/c=0,2-3"}, rt.taken())
		require.Equal(t, "2-3", inject(t, m, two))
		require.Equal(t, "1", inject(t, m, one), "the same again")
		require.Equal(t, "0", inject(t, m, shares("new")))
		synctest.Wait()
		require.Equal(t, []string{"old/c=0"}, rt.taken())
		require.Equal(t, []string{"one/c=1", "two/c=2-3"}, assigned)
		require.Equal(t, "2-3", m.CPUs("two", "c").String())
		require.Equal(t, "1-3", m.AllocatableCPUs().String())
		three := pod("three", container("c", "1"))
		_, err := m.Inject(t.Context(), three, &three.Spec.Containers[0], false)
		require.ErrorIs(t, err, cpumanager.ErrNotEnough)
		require.ErrorContains(t, err, "CPUs of container c: too few exclusive CPUs are free: requested=1, available=0")

		require.NoError(t, m.Release(t.Context(), two.UID))
		require.NoError(t, m.Release(t.Context(), two.UID))
		synctest.Wait()
		require.Equal(t, []string{"old/c=0,2-3"}, rt.taken())
		require.Equal(t, "2", inject(t, m, three))
	})
}

// Where a container runs does not make it another container.
func TestInject_CPUsAreNotPartOfTheHash(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newManager(t, newMachine(1, 4), stateFile(t))
		start(t, m, new(fakeRuntime))
		p := pod("p", container("c", "1"))
		i, err := m.Inject(t.Context(), p, &p.Spec.Containers[0], false)
		require.NoError(t, err)
		require.Equal(t, runtime.Injection{Cpuset: runtime.Cpuset{CPUs: "1"}}, i)
		require.Empty(t, i.Hash())
	})
}

// Init containers lend their CPUs to those that run after them; sidecars keep theirs.
func TestManager_InitContainersLendCPUs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		always := corev1.ContainerRestartPolicyAlways
		p := pod("p", container("main", "2"), container("more", "1"))
		sidecar := container("sidecar", "1")
		sidecar.RestartPolicy = &always
		p.Spec.InitContainers = []corev1.Container{container("init", "2"), sidecar, container("last", "1")}
		m := newManager(t, newMachine(1, 6), stateFile(t))
		start(t, m, new(fakeRuntime))
		for _, want := range []struct{ name, cpus string }{{"init", "1-2"}, {"sidecar", "1"}, {"last", "2"}, {"main", "2-3"}, {"more", "4"}} {
			c := container(want.name, "1")
			for _, list := range [][]corev1.Container{p.Spec.InitContainers, p.Spec.Containers} {
				for i := range list {
					if list[i].Name == want.name {
						c = list[i]
					}
				}
			}
			i, err := m.Inject(t.Context(), p, &c, false)
			require.NoError(t, err, want.name)
			require.Equal(t, want.cpus, i.Cpuset.CPUs, want.name)
		}
	})
}

// What was admitted is set aside until the container is created, or the pod is gone.
func TestManager_ReservesAtAdmission(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt := new(fakeRuntime)
		m := newManager(t, newMachine(2, 2), stateFile(t))
		start(t, m, rt)
		synctest.Wait()
		admitter, err := topology.New(topology.Config{Policy: topology.SingleNUMANode, Nodes: topology.NewSet(0, 1), Providers: []topology.Provider{m}})
		require.NoError(t, err)
		two := pod("two", container("c", "2"))
		require.True(t, admitter.Admit(two, nil).Admitted)
		require.Empty(t, m.CPUs("two", "c").String(), "no container has them")
		one := pod("one", container("c", "1"))
		require.True(t, admitter.Admit(one, []*corev1.Pod{two}).Admitted)
		require.Equal(t, "TopologyAffinityError", admitter.Admit(pod("rest", container("c", "1")), []*corev1.Pod{one, two}).Reason)
		require.Equal(t, "2-3", inject(t, m, two))
		require.Equal(t, "1", inject(t, m, one))
		require.NoError(t, m.Release(t.Context(), "two"))

		removed := pod("removed", container("c", "2"))
		require.True(t, admitter.Admit(removed, []*corev1.Pod{one}).Admitted)
		require.True(t, admitter.Admit(two, []*corev1.Pod{one}).Admitted, "removed was never started")
		require.True(t, admitter.Admit(two, []*corev1.Pod{one}).Admitted, "a pod that has its CPUs gets them")
		require.True(t, admitter.Admit(shares("s"), []*corev1.Pod{one, two}).Admitted)
		require.Equal(t, "TopologyAffinityError", admitter.Admit(pod("wide", container("c", "3")), nil).Reason)
	})
}

// Without a topology policy too few CPUs are what a pod is rejected for.
func TestManager_RejectsForTooFewCPUs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newManager(t, newMachine(1, 2), stateFile(t))
		start(t, m, new(fakeRuntime))
		synctest.Wait()
		admitter, err := topology.New(topology.Config{Nodes: topology.NewSet(0), Providers: []topology.Provider{m}})
		require.NoError(t, err)
		v := admitter.Admit(pod("p", container("c", "2")), nil)
		require.Equal(t, "UnexpectedAdmissionError", v.Reason)
		require.Equal(t, "Allocate failed due to too few exclusive CPUs are free: requested=2, available=1, which is unexpected", v.Message)
	})
}

func TestManager_MemoryAffinity(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt := new(fakeRuntime)
		m := newManager(t, newMachine(2, 4), stateFile(t), func(cfg *cpumanager.Config) { cfg.MemoryAffinity = true })
		start(t, m, rt)
		synctest.Wait()
		large := pod("large", container("c", "2"))
		large.Spec.Containers[0].Resources.Requests[corev1.ResourceMemory] = resource.MustParse("6Gi")
		hints := m.Hints(large, &large.Spec.Containers[0])
		require.Len(t, hints, 2)
		i, err := m.Inject(t.Context(), large, &large.Spec.Containers[0], false)
		require.NoError(t, err)
		require.Equal(t, runtime.Cpuset{CPUs: "1-2", MemoryNodes: "0"}, i.Cpuset)
		nodes, bytes := m.Memory("large", "c")
		require.Equal(t, topology.NewSet(0), nodes)
		require.Equal(t, int64(6<<30), bytes)
		require.Equal(t, map[int]int64{0: 8 << 30, 1: 8 << 30}, m.AllocatableMemory())

		more := pod("more", container("c", "1"))
		more.Spec.Containers[0].Resources.Requests[corev1.ResourceMemory] = resource.MustParse("3Gi")
		more.Spec.Containers[0].Resources.Limits = more.Spec.Containers[0].Resources.Requests
		require.Equal(t, []topology.Hint{{Nodes: topology.NewSet(1), Preferred: true}, {Nodes: topology.NewSet(0, 1)}}, m.Hints(more, &more.Spec.Containers[0])[1])
		i, err = m.Inject(t.Context(), more, &more.Spec.Containers[0], false)
		require.NoError(t, err)
		require.Equal(t, runtime.Cpuset{CPUs: "3"}, i.Cpuset, "the memory of the node of the CPU does not suffice")
		nodes, _ = m.Memory("more", "c")
		require.Zero(t, nodes.Len())
		require.NoError(t, m.Release(t.Context(), "more"))
		require.NoError(t, m.Reserve(more, &more.Spec.Containers[0], topology.NewSet(1)))
		i, err = m.Inject(t.Context(), more, &more.Spec.Containers[0], false)
		require.NoError(t, err)
		require.Equal(t, runtime.Cpuset{CPUs: "4", MemoryNodes: "1"}, i.Cpuset)
	})
}

// A container that loses its own CPUs may use the memory of all nodes again. The last update
// counts, and after a restart what is observed.
func TestRunner_LiftsMemoryConfinement(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		file, rt, affinity := stateFile(t), new(fakeRuntime), true
		create := func() (*cpumanager.Manager, func()) {
			m := newManager(t, newMachine(2, 4), file, func(cfg *cpumanager.Config) { cfg.MemoryAffinity = affinity })
			return m, start(t, m, rt)
		}
		m, stop := create()
		p := pod("p", container("c", "2"))
		require.Equal(t, "1-2", inject(t, m, p))
		rt.run(p, "1-3")
		synctest.Wait()
		time.Sleep(10 * time.Second)
		synctest.Wait()
		require.Equal(t, []string{"p/c=1-2@0"}, rt.taken())
		shared := shares("p")
		_, err := m.Inject(t.Context(), shared, &shared.Spec.Containers[0], true)
		require.NoError(t, err)
		time.Sleep(time.Minute)
		synctest.Wait()
		require.Equal(t, []string{"p/c=0-7@0-1"}, rt.taken(), "once")
		stop()

		rt.pods[0].Containers[0].Resources.Cpuset.CPUs = "0-7"
		rt.pods[0].Containers[0].Resources.Cpuset.MemoryNodes = "1"
		affinity = false
		_, stop = create()
		time.Sleep(time.Minute)
		synctest.Wait()
		require.Empty(t, rt.taken(), "something else has confined it")
		stop()
		affinity = true
		create()
		time.Sleep(time.Minute)
		synctest.Wait()
		require.Equal(t, []string{"p/c=0-7@0-1"}, rt.taken())
	})
}

func TestNew_ChecksConfig(t *testing.T) {
	_, err := cpumanager.New(cpumanager.Config{StateFile: "cpus.json", Period: -1, RestoreTimeout: -1})
	for _, want := range []string{"Config.Topology: required", "Config.Reserved: at least one CPU", `Config.StateFile: "cpus.json" must be an absolute path`, "Config.Period: -1ns", "Config.RestoreTimeout: -1ns"} {
		require.ErrorContains(t, err, want)
	}
	m := newMachine(1, 2)
	cfg := cpumanager.Config{Topology: m.topology, Reserved: topology.NewSet(1, 2), StateFile: filepath.Join(t.TempDir(), "f")}
	_, err = cpumanager.New(cfg)
	require.ErrorContains(t, err, "Config.Reserved: CPUs 2 are not online; there are 0-1")
	m.e = errors.New("no /sys")
	_, err = cpumanager.New(cfg)
	require.ErrorContains(t, err, "cpumanager: no /sys")
}

// A container that needs its own CPUs waits until it is known which are in use.
func TestInject_WaitsForRestore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt := new(fakeRuntime)
		rt.fail("not ready")
		m := newManager(t, newMachine(1, 2), stateFile(t))
		p := pod("p", container("c", "1"))
		require.Nil(t, m.Hints(p, &p.Spec.Containers[0]))
		require.NoError(t, m.Reserve(p, &p.Spec.Containers[0], topology.NewSet(0)))
		begin := time.Now()
		_, err := m.Inject(t.Context(), p, &p.Spec.Containers[0], false)
		require.ErrorIs(t, err, cpumanager.ErrNotRestored)
		require.Equal(t, 30*time.Second, time.Since(begin))
		require.Equal(t, "0-1", inject(t, m, shares("s")), "others do not wait")

		start(t, m, rt)
		time.AfterFunc(5*time.Second, func() { rt.fail("") })
		begin = time.Now()
		require.Equal(t, "1", inject(t, m, p))
		require.InDelta(t, 5.5, time.Since(begin).Seconds(), 1, "it is tried again each second")
	})
}

// What counts for the quota of a container is whether it has CPUs for itself, not whether it asks
// for them.
func TestManager_HasExclusiveCPUs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		file, machine := stateFile(t), newMachine(1, 4)
		all := machine.t
		m := newManager(t, machine, file)
		start(t, m, new(fakeRuntime))
		p, shared := pod("p", container("c", "2"), container("d", "500m")), shares("s")
		c, d := &p.Spec.Containers[0], &p.Spec.Containers[1]
		require.True(t, m.PodHasExclusiveCPUs(p), "it will have")
		require.False(t, m.PodHasExclusiveCPUs(shared))
		require.False(t, m.HasExclusiveCPUs(p, c))
		require.NoError(t, m.Reserve(p, c, topology.NewSet(0)))
		require.False(t, m.HasExclusiveCPUs(p, c), "only reserved")
		require.Equal(t, "1-2", inject(t, m, p))
		require.True(t, m.HasExclusiveCPUs(p, c))
		require.False(t, m.HasExclusiveCPUs(p, d))
		require.False(t, m.HasExclusiveCPUs(shared, &shared.Spec.Containers[0]))

		restarted := newManager(t, machine, file)
		require.True(t, restarted.HasExclusiveCPUs(p, c), "also after a restart, at once")
		fewer := container("c", "1500m")
		require.False(t, restarted.HasExclusiveCPUs(pod("p", fewer), &fewer), "its new limit counts")

		init := pod("i", container("c", "500m"))
		init.Spec.InitContainers = []corev1.Container{container("first", "1")}
		require.True(t, m.PodHasExclusiveCPUs(init))

		machine.online(topology.NewSet(0, 3), all)
		time.Sleep(10 * time.Second)
		synctest.Wait()
		require.False(t, m.HasExclusiveCPUs(p, c), "its own are unplugged: it shares")
	})
}

// Hints are those of a container that needs CPUs for itself: where it has them, or where as many are
// free, and where its memory fits if that counts.
func TestManager_Hints(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		machine := newMachine(2, 4)
		affinity := false
		create := func() *cpumanager.Manager {
			m := newManager(t, machine, stateFile(t), func(cfg *cpumanager.Config) { cfg.MemoryAffinity = affinity })
			start(t, m, new(fakeRuntime))
			synctest.Wait()
			return m
		}
		m := create()
		p, shared := pod("p", container("c", "3")), shares("s")
		c := &p.Spec.Containers[0]
		require.Nil(t, m.Hints(shared, &shared.Spec.Containers[0]))
		require.NoError(t, m.Reserve(shared, &shared.Spec.Containers[0], topology.NewSet(0)))
		hints := m.Hints(p, c)
		require.Len(t, hints, 1)
		require.Len(t, hints[0], 3, "each node, and both")
		require.NoError(t, m.Reserve(p, c, topology.NewSet(1)))
		own := [][]topology.Hint{{{Nodes: topology.NewSet(1), Preferred: true}}}
		require.Equal(t, own, m.Hints(p, c), "where it has them already")
		larger := container("c", "4")
		require.NotEqual(t, own, m.Hints(pod("p", larger), &larger), "of another size")

		affinity = true
		m = create()
		c.Resources.Requests[corev1.ResourceMemory] = resource.MustParse("10Gi") // more than one node has
		hints = m.Hints(p, c)
		require.Len(t, hints, 2)
		require.Equal(t, []topology.Hint{{Nodes: topology.NewSet(0, 1), Preferred: true}}, hints[1])
		delete(c.Resources.Requests, corev1.ResourceMemory)
		delete(c.Resources.Limits, corev1.ResourceMemory)
		require.LessOrEqual(t, len(m.Hints(p, c)), 1, "no memory is requested")
		all := pod("all", container("c", "1"))
		for _, list := range []corev1.ResourceList{all.Spec.Containers[0].Resources.Requests, all.Spec.Containers[0].Resources.Limits} {
			list[corev1.ResourceMemory] = resource.MustParse("8Gi")
		}
		i, err := m.Inject(t.Context(), all, &all.Spec.Containers[0], false)
		require.NoError(t, err)
		require.NotEmpty(t, i.Cpuset.MemoryNodes, "all that a node has")
	})
}
