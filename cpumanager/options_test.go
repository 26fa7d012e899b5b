package cpumanager_test

import (
	"fmt"
	"log/slog"
	"os"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/cpumanager"
	"github.com/sublet-dev/agent/internal/logtest"
	"github.com/sublet-dev/agent/topology"
)

// newSMT returns a machine of NUMA nodes with so many caches of so many cores, each of two threads: with n cores in
// all, core i has the CPUs i and n+i.
func newSMT(nodes, caches, cores int) *machine {
	t := topology.Topology{Memory: map[int]int64{}}
	n := nodes * caches * cores
	for id := range 2 * n {
		core := id % n
		node := core / (caches * cores)
		t.CPUs = append(t.CPUs, topology.CPU{ID: id, Core: core, Socket: node, Node: node, UncoreCache: core / cores})
		t.Memory[node] = 64 << 30
	}
	return &machine{t: t}
}

// restoredFile is a state file without assignments, so that nothing waits for the runtime.
func restoredFile(t *testing.T) string {
	t.Helper()
	file := stateFile(t)
	require.NoError(t, os.WriteFile(file, []byte(`{"version":1,"pods":{}}`), 0o600))
	return file
}

func withOptions(o cpumanager.Options) func(*cpumanager.Config) {
	return func(cfg *cpumanager.Config) { cfg.Options = o }
}

func withReserved(cpus ...int) func(*cpumanager.Config) {
	return func(cfg *cpumanager.Config) { cfg.Reserved = topology.NewSet(cpus...) }
}

func newAdmitter(t *testing.T, m *machine, policy topology.Policy, scope topology.Scope, provider topology.Provider) *topology.Manager {
	t.Helper()
	a, err := topology.New(topology.Config{Policy: policy, Scope: scope, Nodes: m.t.Nodes(), Providers: []topology.Provider{provider}})
	require.NoError(t, err)
	return a
}

func TestNew_OptionsExcludeEachOther(t *testing.T) {
	_, err := cpumanager.New(cpumanager.Config{
		Topology: newSMT(1, 1, 2).topology, Reserved: topology.NewSet(0), StateFile: stateFile(t),
		Options: cpumanager.Options{PreferAlignCPUsByUncoreCache: true, DistributeCPUsAcrossNUMA: true},
	})
	require.EqualError(t, err, "cpumanager: Config.Options: PreferAlignCPUsByUncoreCache and DistributeCPUsAcrossNUMA exclude each other; remove one of both")
}

// Each option decides which CPUs a container gets, with each policy and scope.
func TestManager_Options(t *testing.T) {
	big := newSMT(2, 2, 4) // node 0: cores 0-7, CPUs 0-7 and 16-23
	full := cpumanager.Options{FullPCPUsOnly: true}
	for name, tt := range map[string]struct {
		options  cpumanager.Options
		reserved []int
		before   string // what a container requests that comes first
		request  string
		want     map[topology.Policy]string // by policy: CPUs, or the reason
	}{
		"no option":                  {cpumanager.Options{}, []int{0}, "", "3", map[topology.Policy]string{topology.None: "1,16-17"}},
		"part of a core":             {full, []int{0}, "", "3", map[topology.Policy]string{topology.None: "SMTAlignmentError", topology.SingleNUMANode: "SMTAlignmentError"}},
		"a core":                     {full, []int{0}, "", "2", map[topology.Policy]string{topology.None: "1,17", topology.SingleNUMANode: "1,17"}},
		"all cores of a node":        {full, []int{0}, "", "14", map[topology.Policy]string{topology.None: "1-7,17-23", topology.Restricted: "1-7,17-23"}},
		"more than a node has":       {full, []int{0, 8}, "", "16", map[topology.Policy]string{topology.None: "1-7,9,17-23,25", topology.SingleNUMANode: "TopologyAffinityError"}},
		"the rest are threads":       {full, []int{0, 8}, "26", "4", map[topology.Policy]string{topology.None: "SMTAlignmentError", topology.BestEffort: "SMTAlignmentError", topology.Restricted: "TopologyAffinityError"}},
		"packed":                     {cpumanager.Options{}, []int{0}, "", "20", map[topology.Policy]string{topology.None: "1-2,8-15,17-18,24-31", topology.Restricted: "1-2,8-15,17-18,24-31"}},
		"distributed":                {cpumanager.Options{DistributeCPUsAcrossNUMA: true}, []int{0, 16}, "", "20", map[topology.Policy]string{topology.None: "1-5,8-12,17-21,24-28", topology.Restricted: "1-5,8-12,17-21,24-28"}},
		"distributed, whole cores":   {cpumanager.Options{DistributeCPUsAcrossNUMA: true, FullPCPUsOnly: true}, []int{0}, "", "18", map[topology.Policy]string{topology.None: "1-4,8-12,17-20,24-28"}},
		"distributed where one does": {cpumanager.Options{DistributeCPUsAcrossNUMA: true}, []int{0}, "", "4", map[topology.Policy]string{topology.None: "8-9,24-25", topology.SingleNUMANode: "1-2,17-18"}},
		"no cache":                   {cpumanager.Options{}, []int{0}, "4", "8", map[topology.Policy]string{topology.None: "3-6,19-22"}},
		"a cache":                    {cpumanager.Options{PreferAlignCPUsByUncoreCache: true}, []int{0}, "4", "8", map[topology.Policy]string{topology.None: "4-7,20-23", topology.SingleNUMANode: "4-7,20-23"}},
		"the smallest cache":         {cpumanager.Options{PreferAlignCPUsByUncoreCache: true}, []int{0}, "", "6", map[topology.Policy]string{topology.None: "1-3,17-19"}},
		"a cache and a part":         {cpumanager.Options{PreferAlignCPUsByUncoreCache: true, FullPCPUsOnly: true}, []int{0}, "2", "10", map[topology.Policy]string{topology.None: "2,4-7,18,20-23"}},
		"strict reservation":         {cpumanager.Options{StrictCPUReservation: true}, []int{0}, "", "2", map[topology.Policy]string{topology.None: "1,17"}},
	} {
		for policy, want := range tt.want {
			for _, scope := range []topology.Scope{topology.ContainerScope, topology.PodScope} {
				t.Run(fmt.Sprint(name, "/", policy, "/", scope), func(t *testing.T) {
					m := newManager(t, big, restoredFile(t), withOptions(tt.options), withReserved(tt.reserved...))
					admitter := newAdmitter(t, big, policy, scope, m)
					var others []*corev1.Pod
					if tt.before != "" {
						others = append(others, pod("before", container("c", tt.before)))
						inject(t, m, others[0])
					}
					p := pod("p", container("c", tt.request))
					result := admitter.Admit(p, others)
					if !result.Admitted {
						require.Equal(t, want, result.Reason, result.Message)
						return
					}
					require.Equal(t, want, inject(t, m, p))
				})
			}
		}
	}
}

// Only a request that can never be one of whole cores is infeasible, and a container without admission gets the error. // CU-2
func TestManager_SMTAlignmentError(t *testing.T) {
	machine := newSMT(1, 1, 4)
	m := newManager(t, machine, restoredFile(t), withOptions(cpumanager.Options{FullPCPUsOnly: true}))
	require.Equal(t, "1-3,5-7", m.AllocatableCPUs().String(), "4 is of the core of 0")
	admitter := newAdmitter(t, machine, topology.None, topology.ContainerScope, m)
	three, eight := pod("three", container("c", "3")), pod("eight", container("c", "8"))
	result := admitter.Admit(three, nil)
	require.Equal(t, cpumanager.ReasonSMTAlignment, result.Reason)
	require.Equal(t, "SMT Alignment Error: container c: requested=3 CPUs are not whole cores, which have 2 each", result.Message)
	require.True(t, result.Infeasible())
	result = admitter.Admit(eight, nil)
	require.Equal(t, "SMT Alignment Error: container c: too few whole cores are free: requested=8, available=6 CPUs, of 2 in a core", result.Message)
	require.False(t, result.Infeasible())

	_, err := m.Inject(t.Context(), three, &three.Spec.Containers[0], false)
	require.ErrorContains(t, err, "are not whole cores")
	require.NotErrorIs(t, err, cpumanager.ErrNotEnough)
	_, err = m.Inject(t.Context(), eight, &eight.Spec.Containers[0], false)
	require.ErrorIs(t, err, cpumanager.ErrNotEnough)
	require.Equal(t, "0-7", inject(t, m, shares("s")))
	require.Empty(t, m.CPUs("three", "c").IDs())
}

// All containers of a pod get whole cores of one node, and init containers lend theirs.
func TestManager_FullPCPUsOnlyInPodScope(t *testing.T) {
	machine := newSMT(2, 1, 4)
	m := newManager(t, machine, restoredFile(t), withOptions(cpumanager.Options{FullPCPUsOnly: true}))
	admitter := newAdmitter(t, machine, topology.SingleNUMANode, topology.PodScope, m)
	p := pod("p", container("a", "4"), container("b", "4"))
	p.Spec.InitContainers = []corev1.Container{container("init", "6")}
	require.True(t, admitter.Admit(p, nil).Admitted)
	for c, want := range map[*corev1.Container]string{&p.Spec.InitContainers[0]: "4-6,12-14", &p.Spec.Containers[0]: "4-5,12-13", &p.Spec.Containers[1]: "6-7,14-15"} {
		i, err := m.Inject(t.Context(), p, c, false)
		require.NoError(t, err)
		require.Equal(t, want, i.Cpuset.CPUs, c.Name)
	}
	odd := pod("odd", container("a", "2"), container("b", "1"))
	require.Equal(t, cpumanager.ReasonSMTAlignment, admitter.Admit(odd, []*corev1.Pod{p}).Reason, "3 would fit in node 0")
	odd = pod("odd", container("a", "4"), container("b", "3"))
	require.Equal(t, cpumanager.ReasonSMTAlignment, admitter.Admit(odd, []*corev1.Pod{p}).Reason, "although there is no room either")
	require.Equal(t, topology.ReasonAffinity, admitter.Admit(pod("large", container("a", "8")), []*corev1.Pod{p}).Reason)
}

// Hints count full cores, and a container that has parts of cores stays where it is.
func TestManager_HintsForFullPCPUs(t *testing.T) {
	file := stateFile(t)
	require.NoError(t, os.WriteFile(file, []byte(`{"version":1,"pods":{"p":{"c":{"cpus":"1-2","memoryNodes":"0","memory":1073741824}},"q":{"c":{"cpus":"0,3"}}}}`), 0o600))
	m := newManager(t, newSMT(2, 1, 4), file, withOptions(cpumanager.Options{FullPCPUsOnly: true}), withMemory, withReserved(9, 10))
	other := pod("other", container("c", "2"))
	want := sets([]int{1}, []int{0, 1}) // of node 0 parts of two cores are free, 8 and 11
	require.Equal(t, want, m.PodHints(other)[0])
	require.Equal(t, want, m.Hints(other, &other.Spec.Containers[0])[0])
	larger := pod("p", sized("c", "2", "9Gi"))
	require.Equal(t, [][]topology.Hint{sets([]int{0})}, m.Hints(larger, &larger.Spec.Containers[0]))
	require.NoError(t, m.Reserve(larger, &larger.Spec.Containers[0], topology.NewSet(0)))
	require.Equal(t, "1-2", inject(t, m, larger))
}

// A resize keeps to whole cores: others are rejected, and the container keeps what it has.
func TestManager_FullPCPUsOnlyResizes(t *testing.T) {
	for _, scope := range []topology.Scope{topology.ContainerScope, topology.PodScope} {
		machine := newSMT(2, 1, 4)
		m := newManager(t, machine, restoredFile(t), withOptions(cpumanager.Options{FullPCPUsOnly: true}))
		admitter := newAdmitter(t, machine, topology.Restricted, scope, m)
		require.True(t, admitter.Admit(pod("p", container("c", "2")), nil).Admitted)
		require.Equal(t, "1,9", inject(t, m, pod("p", container("c", "2"))))
		for _, tt := range []struct{ request, reason, cpus string }{
			{"4", "", "1-2,9-10"},
			{"3", cpumanager.ReasonSMTAlignment, "1-2,9-10"}, // also one that needs no admission
			{"2", "", "1,9"},
			{"6", "", "1-3,9-11"},
		} {
			p := pod("p", container("c", tt.request))
			require.Equal(t, tt.reason, admitter.Admit(p, nil).Reason, tt.request)
			i, err := m.Inject(t.Context(), p, &p.Spec.Containers[0], true)
			require.NoError(t, err)
			require.Equal(t, tt.cpus, i.Cpuset.CPUs, tt.request)
		}
	}
}

// Containers that run when options or reserved CPUs change keep their CPUs, also when their memory is resized. Those
// that share are moved. // CU-1
func TestManager_ChangedOptions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		machine, file, rt := newSMT(1, 1, 4), restoredFile(t), new(fakeRuntime)
		m := newManager(t, machine, file, withMemory)
		p, other := pod("p", container("c", "3")), shares("s")
		require.Equal(t, "1,4-5", inject(t, m, p))
		rt.run(p, "1,4-5")
		rt.run(other, inject(t, m, other))

		all := cpumanager.Options{FullPCPUsOnly: true, StrictCPUReservation: true, PreferAlignCPUsByUncoreCache: true}
		m = newManager(t, machine, file, withOptions(all), withMemory)
		start(t, m, rt)
		synctest.Wait()
		require.Equal(t, []string{"s/c=2-3,6-7", "p/c=1,4-5@0"}, rt.taken(), "0 is reserved, and strictly now; p has its CPUs")
		admitter := newAdmitter(t, machine, topology.Restricted, topology.ContainerScope, m)
		require.True(t, admitter.Admit(p, nil).Admitted)
		require.Equal(t, "1,4-5", m.CPUs("p", "c").String())
		larger := pod("p", sized("c", "3", "9Gi"))
		require.True(t, admitter.Admit(larger, nil).Admitted, "only its memory is resized")
		_, err := m.Inject(t.Context(), larger, &larger.Spec.Containers[0], true)
		require.NoError(t, err)
		require.Equal(t, "1,4-5", m.CPUs("p", "c").String())
		require.Equal(t, "2,6", inject(t, m, pod("q", container("c", "2"))), "a core that is in part used is not taken")
		require.Equal(t, cpumanager.ReasonSMTAlignment, admitter.Admit(pod("p", container("c", "5")), nil).Reason)

		m = newManager(t, machine, file, withOptions(cpumanager.Options{DistributeCPUsAcrossNUMA: true}))
		require.Equal(t, "1,4-5", inject(t, m, p))
		require.Equal(t, "0,3,7", inject(t, m, other))
	})
}

// Reserved CPUs are for the system alone, unless no others are left to share. // CU-3
func TestManager_StrictCPUReservation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		machine, rt, log := newSMT(1, 1, 3), new(fakeRuntime), new(logtest.Buffer)
		m := newManager(t, machine, restoredFile(t), withOptions(cpumanager.Options{StrictCPUReservation: true}), withReserved(0, 3), func(cfg *cpumanager.Config) { cfg.Logger = logtest.NewLogger(log, slog.LevelWarn) })
		start(t, m, rt)
		synctest.Wait()
		s := shares("s")
		rt.run(s, inject(t, m, s))
		require.Equal(t, "1-2,4-5", inject(t, m, s))
		require.Equal(t, "1,4", inject(t, m, pod("p", container("c", "2"))))
		synctest.Wait()
		require.Equal(t, "2,5", inject(t, m, s))
		require.Equal(t, "2,5", inject(t, m, pod("q", container("c", "2"))))
		require.Equal(t, "0,3", inject(t, m, s), "not on CPUs that others have for themselves")
		synctest.Wait()
		require.Equal(t, []string{"s/c=2,5", "s/c=0,3"}, rt.taken())
		require.Equal(t, 1, strings.Count(log.String(), "containers share reserved cpus, as all others are exclusive"))
		require.NoError(t, m.Release(t.Context(), types.UID("q")))
		synctest.Wait()
		require.Equal(t, []string{"s/c=2,5"}, rt.taken())
	})
}

// If the state is lost, a container that has requested as many CPUs as there are to share may be mistaken for one that has
// them for itself: until it is synced.
func TestManager_StrictCPUReservationWithLostState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt := new(fakeRuntime)
		burstable, exclusive := pod("b", container("c", "2")), pod("e", container("c", "2"))
		burstable.Spec.Containers[0].Resources.Limits = nil
		rt.run(burstable, "2,5")
		rt.run(exclusive, "1,4")
		m := newManager(t, newSMT(1, 1, 3), stateFile(t), withOptions(cpumanager.Options{StrictCPUReservation: true}), withReserved(0, 3))
		start(t, m, rt)
		synctest.Wait()
		require.Equal(t, "1,4", m.CPUs("e", "c").String())
		_, err := m.Inject(t.Context(), burstable, &burstable.Spec.Containers[0], true)
		require.NoError(t, err)
		require.Empty(t, m.CPUs("b", "c").IDs())
		require.Equal(t, "2,5", inject(t, m, burstable))
	})
}
