package cpumanager_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sublet-dev/agent/cpumanager"
	"github.com/sublet-dev/agent/topology"
)

// stored is an assignment in a state file.
type stored struct {
	pod, container, cpus, nodes string
	memory                      int64
	step                        int
	once                        bool
}

// storedFile is a state file with these assignments.
func storedFile(t testing.TB, all []stored) string {
	t.Helper()
	pods := map[string][]string{}
	for _, s := range all {
		pods[s.pod] = append(pods[s.pod], fmt.Sprintf(`%q:{"cpus":%q,"memoryNodes":%q,"memory":%d,"step":%d,"once":%v}`, s.container, s.cpus, s.nodes, s.memory, s.step, s.once))
	}
	var text []string
	for _, uid := range slices.Sorted(maps.Keys(pods)) {
		text = append(text, fmt.Sprintf("%q:{%s}", uid, strings.Join(pods[uid], ",")))
	}
	file := t.TempDir() + "/cpus.json"
	require.NoError(t, os.WriteFile(file, []byte(`{"version":1,"pods":{`+strings.Join(text, ",")+`}}`), 0o600))
	return file
}

// usedOf counts one by one what containers have of the memory of nodes: of each pod, the most in any step.
func usedOf(all []stored, nodes topology.Set) (used int64) {
	most := map[string]int64{}
	for _, at := range all {
		n := int64(0)
		for _, s := range all {
			has, _ := topology.ParseSet(s.nodes)
			runs := s.step == at.step || s.step < at.step && !s.once
			if s.pod == at.pod && runs && has.Intersect(nodes).Len() > 0 {
				n += s.memory
			}
		}
		most[at.pod] = max(most[at.pod], n)
	}
	for _, n := range most {
		used += n
	}
	return used
}

// Containers of one pod have the memory of the same nodes or of others, at the same time or one after the other.
func TestManager_CountsMemoryOfAllPods(t *testing.T) {
	for seed := range uint64(20) {
		random := rand.New(rand.NewPCG(seed, 1))
		machine := newMachine(4, 16)
		var all []stored
		for i := range 12 {
			steps := 1 + random.IntN(3)
			for step := range steps {
				all = append(all, stored{
					pod: fmt.Sprint("p", i), container: fmt.Sprint("c", step), cpus: fmt.Sprint(1 + 3*i + step), nodes: []string{"", "0", "0-1", "2", "1,3", "0-3"}[random.IntN(6)],
					memory: random.Int64N(1 << 30), step: step, once: step < steps-1 && random.IntN(2) == 0,
				})
			}
		}
		m := newManager(t, machine, storedFile(t, all), func(cfg *cpumanager.Config) { cfg.MemoryAffinity = true })
		for _, request := range []int64{1 << 30, 7 << 30, 15 << 30, 27 << 30} {
			c := sized("c", "1", fmt.Sprint(request))
			hints := m.Hints(pod("new", c), &c)[1]
			for mask := 1; mask < 1<<4; mask++ {
				var ids []int
				for id := range 4 {
					if mask&(1<<id) != 0 {
						ids = append(ids, id)
					}
				}
				nodes := topology.NewSet(ids...)
				fits := int64(len(ids))*(8<<30)-usedOf(all, nodes) >= request
				require.Equal(t, fits, slices.ContainsFunc(hints, func(h topology.Hint) bool { return h.Nodes.Equal(nodes) }), "seed %d, %d of %s, beside %+v", seed, request, nodes, all)
			}
		}
	}
}

// manyPods returns a Manager of 16 NUMA nodes and 500 pods with exclusive CPUs.
func manyPods(b *testing.B) *cpumanager.Manager {
	var all []stored
	for i := range 500 {
		node := i % 16
		all = append(all, stored{pod: fmt.Sprint("p", i), container: "c", cpus: fmt.Sprint(node*64 + 1 + i/16), nodes: fmt.Sprint(node), memory: 1 << 20})
	}
	m, err := cpumanager.New(cpumanager.Config{Topology: newMachine(16, 64).topology, Reserved: topology.NewSet(0), StateFile: storedFile(b, all), MemoryAffinity: true})
	require.NoError(b, err)
	return m
}

func BenchmarkManager_Hints(b *testing.B) {
	m, c := manyPods(b), container("c", "2")
	p := pod("new", c)
	b.ReportAllocs()
	for b.Loop() {
		require.Len(b, m.Hints(p, &c)[1], 1<<16-1)
	}
}

func BenchmarkManager_InjectShared(b *testing.B) {
	m, p := manyPods(b), shares("shares")
	b.ReportAllocs()
	for b.Loop() {
		_, err := m.Inject(b.Context(), p, &p.Spec.Containers[0], true)
		require.NoError(b, err)
	}
}
