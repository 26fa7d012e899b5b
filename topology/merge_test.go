package topology_test

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/topology"
)

// Merge finds what trying each combination of one hint of every resource finds.
func TestMerge_TriesAllCombinations(t *testing.T) {
	random := rand.New(rand.NewPCG(5, 6))
	ids := []int{0, 1, 3, 8}
	nodes := topology.NewSet(ids...)
	for range 2000 {
		resources := make([][]topology.Hint, 1+random.IntN(3))
		for i := range resources {
			if random.IntN(8) == 0 {
				continue
			}
			resources[i] = []topology.Hint{}
			for range random.IntN(5) {
				var in []int
				for mask := 1 + random.IntN(15); mask > 0; mask &= mask - 1 {
					in = append(in, ids[trailing(mask)])
				}
				resources[i] = append(resources[i], hint(random.IntN(2) > 0, in...))
			}
		}
		policy := []topology.Policy{topology.BestEffort, topology.Restricted}[random.IntN(2)]
		want, wantOK := tried(policy, nodes, resources)
		got, ok := topology.Merge(policy, nodes, resources)
		require.Equal(t, want.Nodes.String(), got.Nodes.String(), "%v", resources)
		require.Equal(t, want.Preferred, got.Preferred, "%v", resources)
		require.Equal(t, wantOK, ok)
	}
}

func trailing(mask int) (n int) {
	for ; mask&1 == 0; mask >>= 1 {
		n++
	}
	return n
}

// tried is Merge by trying everything.
func tried(policy topology.Policy, nodes topology.Set, resources [][]topology.Hint) (topology.Hint, bool) {
	var lists [][]topology.Hint
	needed := 0
	for _, hints := range resources {
		if hints == nil {
			continue
		}
		if len(hints) == 0 {
			lists = append(lists, []topology.Hint{{Nodes: nodes}})
			continue
		}
		least := nodes.Len()
		for _, h := range hints {
			least = min(least, h.Nodes.Len())
		}
		lists, needed = append(lists, hints), max(needed, least)
	}
	best := topology.Hint{Nodes: nodes, Preferred: len(lists) == 0}
	found := len(lists) == 0
	better := func(a, b topology.Hint) bool {
		if a.Preferred != b.Preferred {
			return a.Preferred
		}
		rank := func(h topology.Hint) int {
			n := h.Nodes.Len()
			if h.Preferred || n > needed {
				return n + needed
			}
			return needed - n
		}
		x, y := a.Nodes.IDs(), b.Nodes.IDs()
		slices.Reverse(x)
		slices.Reverse(y)
		return cmp.Or(cmp.Compare(rank(a), rank(b)), slices.Compare(x, y)) < 0
	}
	var try func(rest [][]topology.Hint, chosen []topology.Hint)
	try = func(rest [][]topology.Hint, chosen []topology.Hint) {
		if len(rest) > 0 {
			for _, h := range rest[0] {
				try(rest[1:], append(slices.Clone(chosen), h))
			}
			return
		}
		both := topology.Hint{Nodes: nodes, Preferred: true}
		for _, h := range chosen {
			both = topology.Hint{Nodes: both.Nodes.Intersect(h.Nodes), Preferred: both.Preferred && h.Preferred && h.Nodes.Equal(chosen[0].Nodes)}
		}
		if len(chosen) > 0 && both.Nodes.Len() > 0 && (!found || better(both, best)) {
			best, found = both, true
		}
	}
	try(lists, nil)
	return best, policy == topology.BestEffort || best.Preferred
}

// wantsNodes is a provider whose resource needs two NUMA nodes.
type wantsNodes struct {
	provider
	nodes topology.Set
	got   topology.Set
}

func (w *wantsNodes) Hints(*corev1.Pod, *corev1.Container) [][]topology.Hint {
	two := func(nodes topology.Set) (int64, int64) { return int64(nodes.Len()), int64(nodes.Len()) }
	return [][]topology.Hint{topology.MakeHints(w.nodes, 2, two), topology.MakeHints(w.nodes, 1, two)}
}

func (w *wantsNodes) Reserve(_ *corev1.Pod, _ *corev1.Container, nodes topology.Set) error {
	w.got = nodes
	return w.err
}

// Of sets of as many nodes the closest one is chosen, if that is asked for. // CU-4
func TestManager_PrefersClosestNUMANodes(t *testing.T) {
	distances := map[int]map[int]int{}
	for from := range 4 {
		distances[from] = map[int]int{}
		for to := range 4 {
			switch {
			case from == to:
				distances[from][to] = 10
			case from%2 == to%2:
				distances[from][to] = 11
			default:
				distances[from][to] = 21
			}
		}
	}
	distances[1][3], distances[3][1] = 12, 12
	for name, tt := range map[string]struct {
		policy topology.Policy
		ask    bool
		want   string
	}{
		"low numbers": {topology.BestEffort, false, "0-1"},
		"closest":     {topology.BestEffort, true, "0,2"},
	} {
		t.Run(name, func(t *testing.T) {
			p := &wantsNodes{nodes: topology.NewSet(0, 1, 2, 3)}
			m, err := topology.New(topology.Config{
				Policy: tt.policy, Nodes: p.nodes, Providers: []topology.Provider{p}, Distances: distances, Options: topology.Options{PreferClosestNUMANodes: tt.ask},
			})
			require.NoError(t, err)
			require.True(t, m.Admit(testPod("a"), nil).Admitted)
			require.Equal(t, tt.want, p.got.String())
		})
	}
}

func TestNew_ChecksOptions(t *testing.T) {
	var ids []int
	for id := range 17 {
		ids = append(ids, id)
	}
	for name, tt := range map[string]struct {
		policy  topology.Policy
		nodes   int
		options topology.Options
		want    string // empty: no error
	}{
		"nine nodes":                  {topology.BestEffort, 9, topology.Options{}, "has 9 NUMA nodes, at most 8 are allowed; raise Options.MaxAllowableNUMANodes (max-allowable-numa-nodes)"},
		"nine nodes allowed":          {topology.BestEffort, 9, topology.Options{MaxAllowableNUMANodes: 9}, ""},
		"ten nodes":                   {topology.Restricted, 10, topology.Options{MaxAllowableNUMANodes: 9}, "has 10 NUMA nodes, at most 9 are allowed"},
		"sixteen nodes":               {topology.SingleNUMANode, 16, topology.Options{MaxAllowableNUMANodes: 64}, ""},
		"seventeen nodes":             {topology.BestEffort, 17, topology.Options{MaxAllowableNUMANodes: 64}, "has 17 NUMA nodes, at most 16 can be combined"},
		"any number":                  {topology.None, 17, topology.Options{PreferClosestNUMANodes: true}, ""},
		"fewer allowed":               {topology.None, 1, topology.Options{MaxAllowableNUMANodes: 7}, "Config.Options.MaxAllowableNUMANodes: 7 must be at least 8"},
		"without distances":           {topology.BestEffort, 2, topology.Options{PreferClosestNUMANodes: true}, "Config.Distances: that from node 0 to node 0 is missing"},
		"without distances, one node": {topology.BestEffort, 1, topology.Options{PreferClosestNUMANodes: true}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			p := &wantsNodes{nodes: topology.NewSet(ids[:tt.nodes]...)}
			m, err := topology.New(topology.Config{Policy: tt.policy, Nodes: p.nodes, Providers: []topology.Provider{p}, Options: tt.options})
			if tt.want != "" {
				require.ErrorContains(t, err, tt.want)
				return
			}
			require.NoError(t, err)
			if tt.policy == topology.BestEffort && tt.nodes > 8 {
				require.True(t, m.Admit(testPod("a"), nil).Admitted)
				require.Equal(t, "0-1", p.got.String())
			}
		})
	}
}

// Hints of many nodes are combined at once, not pair by pair.
func TestMerge_ManyNodes(t *testing.T) {
	var ids []int
	for id := range 12 {
		ids = append(ids, id)
	}
	nodes := topology.NewSet(ids...)
	count := func(nodes topology.Set) (int64, int64) { return int64(nodes.Len()), int64(nodes.Len()) }
	last := topology.MakeHints(nodes, 2, func(in topology.Set) (int64, int64) {
		n := int64(in.Intersect(topology.NewSet(7, 10, 11)).Len())
		return n, n
	})
	got, admitted := topology.Merge(topology.Restricted, nodes, [][]topology.Hint{topology.MakeHints(nodes, 2, count), last, topology.MakeHints(nodes, 1, count)})
	require.False(t, admitted)
	require.Equal(t, "0-1", got.Nodes.String())
	got, admitted = topology.Merge(topology.Restricted, nodes, [][]topology.Hint{topology.MakeHints(nodes, 2, count), last})
	require.True(t, admitted)
	require.Equal(t, "7,10", got.Nodes.String())
}

// rejection is an error with a reason of its own.
type rejection struct{}

func (rejection) Error() string { return "no" }

func (rejection) AdmitResult() podspec.AdmitResult { return podspec.Rejected("Odd", "it is odd") }

// A provider may say how the pod is rejected.
func TestManager_RejectsAsTheProviderSays(t *testing.T) {
	p := &wantsNodes{nodes: topology.NewSet(0), provider: provider{err: rejection{}}}
	m, err := topology.New(topology.Config{Nodes: p.nodes, Providers: []topology.Provider{p}})
	require.NoError(t, err)
	require.Equal(t, podspec.Rejected("Odd", "it is odd"), m.Admit(testPod("a"), nil))
}
