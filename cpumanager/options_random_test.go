package cpumanager_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/cpumanager"
	"github.com/sublet-dev/agent/topology"
)

// node is a machine on which pods come, are resized and go, and the agent is started again with other options.
type node struct {
	t         *testing.T
	random    *rand.Rand
	machine   *machine
	file      string
	cfg       cpumanager.Config
	m         *cpumanager.Manager
	admit     *topology.Manager
	pods      map[types.UID]*corev1.Pod
	has       map[types.UID]topology.Set
	fullCores map[types.UID]bool // it got its CPUs while whole cores were required
	next      int
}

func (n *node) restart() {
	n.cfg.Options = cpumanager.Options{FullPCPUsOnly: n.random.IntN(3) > 0, StrictCPUReservation: n.random.IntN(2) > 0, DistributeCPUsAcrossNUMA: n.random.IntN(2) > 0}
	n.cfg.Options.PreferAlignCPUsByUncoreCache = !n.cfg.Options.DistributeCPUsAcrossNUMA && n.random.IntN(2) > 0
	n.cfg.MemoryAffinity = n.random.IntN(2) > 0
	n.m = newManager(n.t, n.machine, n.file, func(cfg *cpumanager.Config) {
		n.cfg.Topology, n.cfg.StateFile = cfg.Topology, cfg.StateFile
		*cfg = n.cfg
	})
	policies := []topology.Policy{topology.None, topology.BestEffort, topology.Restricted, topology.SingleNUMANode}
	scopes := []topology.Scope{topology.ContainerScope, topology.PodScope}
	n.admit = newAdmitter(n.t, n.machine, policies[n.random.IntN(len(policies))], scopes[n.random.IntN(2)], n.m)
}

func (n *node) others(uid types.UID) (others []*corev1.Pod) {
	for _, p := range n.pods {
		if p.UID != uid {
			others = append(others, p)
		}
	}
	return others
}

// add admits and starts a pod.
func (n *node) add() {
	n.next++
	p := pod(types.UID(fmt.Sprint(n.next)), container("c", fmt.Sprint(1+n.random.IntN(8))))
	if !n.admit.Admit(p, n.others(p.UID)).Admitted {
		return
	}
	_, err := n.m.Inject(n.t.Context(), p, &p.Spec.Containers[0], false)
	require.NoError(n.t, err)
	n.pods[p.UID], n.has[p.UID], n.fullCores[p.UID] = p, n.m.CPUs(p.UID, "c"), n.cfg.Options.FullPCPUsOnly
	require.Equal(n.t, p.Spec.Containers[0].Resources.Requests.Cpu().Value(), int64(n.has[p.UID].Len()))
}

// resize admits another number of CPUs for a pod, and syncs it.
func (n *node) resize(uid types.UID) {
	p := pod(uid, container("c", fmt.Sprint(1+n.random.IntN(8))))
	before := n.pods[uid]
	if !n.admit.Admit(p, n.others(uid)).Admitted {
		p = before
	}
	_, err := n.m.Inject(n.t.Context(), p, &p.Spec.Containers[0], true)
	require.NoError(n.t, err)
	if has := n.m.CPUs(uid, "c"); !has.Equal(n.has[uid]) {
		n.pods[uid], n.has[uid], n.fullCores[uid] = p, has, n.cfg.Options.FullPCPUsOnly
	}
}

// check verifies what holds at any time.
func (n *node) check() {
	var used topology.Set
	for uid, want := range n.has {
		got := n.m.CPUs(uid, "c")
		require.Equal(n.t, want.String(), got.String(), "it keeps its CPUs")
		require.Zero(n.t, got.Intersect(used).Len(), "a CPU of two pods")
		require.Zero(n.t, got.Intersect(n.cfg.Reserved).Len(), "a reserved CPU")
		used = used.Union(got)
		if n.fullCores[uid] {
			require.Equal(n.t, got.String(), n.machine.t.FullCores(got).String(), "part of a core")
		}
	}
	s, err := topology.ParseSet(inject(n.t, n.m, shares("s")))
	require.NoError(n.t, err)
	require.NotZero(n.t, s.Len())
	require.Zero(n.t, s.Intersect(used).Len(), "shared and exclusive")
	if left := n.machine.t.Online().Minus(used).Minus(n.cfg.Reserved); n.cfg.Options.StrictCPUReservation && left.Len() > 0 {
		require.Equal(n.t, left.String(), s.String(), "reserved CPUs are not shared")
	}
}

// Whatever comes and goes, and however options change, no promise is broken. // CU-1, CU-2, CU-3
func TestManager_KeepsPromisesOfOptions(t *testing.T) {
	for seed := range uint64(12) {
		random := rand.New(rand.NewPCG(seed, 9))
		n := &node{
			t: t, random: random, machine: newSMT(1+random.IntN(3), 1+random.IntN(2), 2+random.IntN(3)), file: restoredFile(t),
			pods: map[types.UID]*corev1.Pod{}, has: map[types.UID]topology.Set{}, fullCores: map[types.UID]bool{},
		}
		n.cfg.Reserved = topology.NewSet(0, random.IntN(4))
		n.restart()
		for range 60 {
			var some types.UID
			if uids := slices.Sorted(maps.Keys(n.pods)); len(uids) > 0 {
				some = uids[random.IntN(len(uids))]
			}
			switch what := random.IntN(10); {
			case what == 0:
				n.restart()
			case what < 4 && some != "":
				n.resize(some)
			case what < 6 && some != "":
				require.NoError(t, n.m.Release(t.Context(), some))
				delete(n.pods, some)
				delete(n.has, some)
			default:
				n.add()
			}
			n.check()
		}
	}
}
