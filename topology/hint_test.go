package topology_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/topology"
)

func hint(preferred bool, nodes ...int) topology.Hint {
	return topology.Hint{Nodes: topology.NewSet(nodes...), Preferred: preferred}
}

func TestParsePolicy(t *testing.T) {
	for _, name := range []string{"none", "best-effort", "restricted", "single-numa-node"} {
		p, err := topology.ParsePolicy(name)
		require.NoError(t, err)
		require.Equal(t, name, string(p))
	}
	_, err := topology.ParsePolicy("")
	require.ErrorContains(t, err, "must be none, best-effort")
}

func TestMakeHints(t *testing.T) {
	all, available := map[int]int64{0: 4, 1: 4, 2: 2}, map[int]int64{0: 1, 1: 4, 2: 2}
	count := func(nodes topology.Set) (a, b int64) {
		require.NotZero(t, nodes.Len())
		for _, n := range nodes.IDs() {
			a, b = a+all[n], b+available[n]
		}
		return a, b
	}
	nodes := topology.NewSet(0, 1, 2)
	require.ElementsMatch(t, []topology.Hint{hint(true, 1), hint(false, 0, 1), hint(false, 0, 2), hint(false, 1, 2), hint(false, 0, 1, 2)}, topology.MakeHints(nodes, 3, count))
	require.ElementsMatch(t, []topology.Hint{hint(true, 0, 1), hint(true, 1, 2), hint(false, 0, 1, 2)}, topology.MakeHints(nodes, 5, count))
	require.Contains(t, topology.MakeHints(nodes, 4, count), hint(true, 1), "all that a node has")
	require.NotContains(t, topology.MakeHints(nodes, 4, count), hint(true, 0, 1))
	available[0] = 4
	require.Equal(t, []topology.Hint{hint(true, 0, 1, 2)}, topology.MakeHints(nodes, 10, count), "all that there is")
	available[0] = 1
	require.Equal(t, []topology.Hint{}, topology.MakeHints(nodes, 8, count), "none is not the same as indifferent")
}

func TestMerge(t *testing.T) {
	nodes := topology.NewSet(0, 1)
	everywhere := []topology.Hint{hint(true, 0), hint(true, 1), hint(false, 0, 1)}
	for name, tt := range map[string]struct {
		policy    topology.Policy
		resources [][]topology.Hint
		want      topology.Hint
		admitted  bool
	}{
		"none asks for nothing":          {topology.None, [][]topology.Hint{{}}, hint(true, 0, 1), true},
		"nothing requested":              {topology.SingleNUMANode, nil, hint(true, 0, 1), true},
		"indifferent":                    {topology.SingleNUMANode, [][]topology.Hint{nil, everywhere}, hint(true, 0), true},
		"where both are":                 {topology.BestEffort, [][]topology.Hint{everywhere, {hint(true, 1)}}, hint(true, 1), true},
		"narrow before wide":             {topology.BestEffort, [][]topology.Hint{{hint(true, 0, 1), hint(true, 1)}}, hint(true, 1), true},
		"preferred before narrow":        {topology.BestEffort, [][]topology.Hint{{hint(false, 1), hint(true, 0, 1)}}, hint(true, 0, 1), true},
		"best effort takes what is left": {topology.BestEffort, [][]topology.Hint{{hint(true, 0)}, {hint(true, 1)}}, hint(false, 0, 1), true},
		"restricted does not":            {topology.Restricted, [][]topology.Hint{{hint(true, 0)}, {hint(true, 1)}}, hint(false, 0, 1), false},
		"restricted takes two nodes":     {topology.Restricted, [][]topology.Hint{{hint(true, 0, 1)}, nil, {hint(true, 0, 1)}}, hint(true, 0, 1), true},
		"restricted wants the same":      {topology.Restricted, [][]topology.Hint{{hint(true, 0, 1)}, everywhere}, hint(false, 0, 1), false},
		"the same again does not help":   {topology.Restricted, [][]topology.Hint{{hint(true, 0, 1)}, {hint(true, 0)}, {hint(true, 0)}}, hint(false, 0), false},
		"as many as one needs":           {topology.BestEffort, [][]topology.Hint{everywhere, {hint(true, 0, 1)}, everywhere}, hint(false, 0, 1), true},
		"almost as many as one needs":    {topology.BestEffort, [][]topology.Hint{{hint(true, 0, 1)}, {hint(true, 0)}}, hint(false, 0), true},
		"not more than one needs":        {topology.BestEffort, [][]topology.Hint{{hint(false, 0), hint(false, 0, 1)}}, hint(false, 0), true},
		"restricted rejects worse":       {topology.Restricted, [][]topology.Hint{{hint(false, 0, 1)}}, hint(false, 0, 1), false},
		"single":                         {topology.SingleNUMANode, [][]topology.Hint{everywhere, everywhere, {hint(true, 1), hint(false, 0, 1)}}, hint(true, 1), true},
		"single rejects two nodes":       {topology.SingleNUMANode, [][]topology.Hint{{hint(true, 0, 1)}}, hint(false, 0, 1), false},
		"single rejects different ones":  {topology.SingleNUMANode, [][]topology.Hint{{hint(true, 0)}, {hint(true, 1)}}, hint(false, 0, 1), false},
		"single rejects what is worse":   {topology.SingleNUMANode, [][]topology.Hint{{hint(false, 0)}}, hint(false, 0, 1), false},
		"one that is not preferred":      {topology.BestEffort, [][]topology.Hint{{hint(false, 0)}, {hint(true, 0)}}, hint(false, 0), true},
		"the same nodes twice":           {topology.Restricted, [][]topology.Hint{{hint(false, 0), hint(true, 0)}, {hint(true, 0)}}, hint(true, 0), true},
		"many resources":                 {topology.BestEffort, slices.Repeat([][]topology.Hint{everywhere}, 100), hint(true, 0), true},
		"single rejects impossible":      {topology.SingleNUMANode, [][]topology.Hint{{}}, hint(false, 0, 1), false},
		"best effort admits impossible":  {topology.BestEffort, [][]topology.Hint{{}, everywhere}, hint(false, 0), true},
		"restricted rejects impossible":  {topology.Restricted, [][]topology.Hint{everywhere, {}}, hint(false, 0), false},
	} {
		t.Run(name, func(t *testing.T) {
			got, admitted := topology.Merge(tt.policy, nodes, tt.resources)
			require.Equal(t, tt.want.Nodes.String(), got.Nodes.String())
			require.Equal(t, tt.want.Preferred, got.Preferred)
			require.Equal(t, tt.admitted, admitted)
		})
	}
}

func TestMerge_TakesLowNumbers(t *testing.T) {
	nodes := topology.NewSet(0, 1, 2, 3)
	got, _ := topology.Merge(topology.BestEffort, nodes, [][]topology.Hint{{hint(true, 0, 3), hint(true, 1, 2), hint(true, 2, 3)}})
	require.Equal(t, "1-2", got.Nodes.String())
}

// provider offers its hints and records what is reserved.
type provider struct {
	hints    [][]topology.Hint
	reserved map[types.UID][]string
	err      error
	panics   bool
}

func (p *provider) Hints(*corev1.Pod, *corev1.Container) [][]topology.Hint {
	if p.panics {
		panic("hints")
	}
	return p.hints
}

func (p *provider) Reserve(pod *corev1.Pod, c *corev1.Container, nodes topology.Set) error {
	if p.err != nil && c.Name == "second" {
		return p.err
	}
	p.reserved[pod.UID] = append(p.reserved[pod.UID], fmt.Sprint(c.Name, " on ", nodes))
	return nil
}

func (p *provider) KeepReserved(keep func(types.UID) bool) {
	for uid := range p.reserved {
		if !keep(uid) {
			delete(p.reserved, uid)
		}
	}
}

func testPod(uid types.UID) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: uid}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "first"}, {Name: "second"}}}}
}

func TestManager_Admit(t *testing.T) {
	cpus := &provider{reserved: map[types.UID][]string{}, hints: [][]topology.Hint{{hint(true, 0), hint(true, 1)}}}
	devices := &provider{reserved: map[types.UID][]string{}, hints: [][]topology.Hint{{hint(true, 1)}}}
	m, err := topology.New(topology.Config{Policy: topology.SingleNUMANode, Nodes: topology.NewSet(0, 1), Providers: []topology.Provider{cpus, devices}})
	require.NoError(t, err)
	a, b := testPod("a"), testPod("b")
	require.True(t, m.Admit(a, nil).Admitted)
	want := []string{"first on 1", "second on 1"}
	require.Equal(t, map[types.UID][]string{"a": want}, cpus.reserved)
	require.Equal(t, cpus.reserved, devices.reserved)

	require.True(t, m.Admit(b, []*corev1.Pod{a}).Admitted)
	require.Equal(t, map[types.UID][]string{"a": want, "b": want}, cpus.reserved)
	devices.err = errors.New("too few")
	require.Equal(t, podspec.Rejected("UnexpectedAdmissionError", "Allocate failed due to too few, which is unexpected"), m.Admit(testPod("c"), []*corev1.Pod{b}))
	require.Equal(t, map[types.UID][]string{"b": want}, cpus.reserved, "of a pod that is gone, and of the rejected one")

	devices.hints = [][]topology.Hint{{hint(true, 0, 1)}}
	require.Equal(t, podspec.Rejected("TopologyAffinityError", "Resources cannot be allocated with Topology locality: policy single-numa-node, container first"), m.Admit(testPod("d"), []*corev1.Pod{b}))
	require.Equal(t, map[types.UID][]string{"b": want}, cpus.reserved)
	require.False(t, m.AdmitBeside(testPod("d"), nil, []*corev1.Pod{b}).Admitted)
	require.Equal(t, map[types.UID][]string{"b": want}, cpus.reserved, "it has not ended")
	devices.panics, devices.err = true, nil
	require.True(t, m.Admit(testPod("e"), []*corev1.Pod{b}).Admitted, "a provider that panics has no preference")
	require.True(t, m.Admit(testPod("f"), nil).Admitted)
	require.Equal(t, map[types.UID][]string{"f": {"first on 0", "second on 0"}}, cpus.reserved, "what was reserved for pods that are not there is free")
}

// The hook gets each decision, and a panic in it does not change the decision.
func TestManager_PodAdmittedHook(t *testing.T) {
	p := &provider{reserved: map[types.UID][]string{}, hints: [][]topology.Hint{{hint(true, 0)}}}
	var calls []string
	m, err := topology.New(topology.Config{Policy: topology.SingleNUMANode, Nodes: topology.NewSet(0, 1), Providers: []topology.Provider{p}, Hooks: topology.Hooks{
		PodAdmitted: func(pod *corev1.Pod, result podspec.AdmitResult, duration time.Duration) {
			calls = append(calls, fmt.Sprint(pod.UID, " ", result.Admitted, " ", result.Reason, duration < 0))
			panic("defect of the application")
		},
	}})
	require.NoError(t, err)
	require.True(t, m.Admit(testPod("a"), nil).Admitted)
	p.hints = [][]topology.Hint{{hint(true, 0, 1)}}
	require.False(t, m.AdmitBeside(testPod("b"), nil, nil).Admitted)
	require.Equal(t, []string{"a true false", "b false TopologyAffinityErrorfalse"}, calls)
}

func TestNew_ChecksConfig(t *testing.T) {
	_, err := topology.New(topology.Config{Policy: "nearby"})
	for _, want := range []string{`Config.Policy: invalid policy "nearby"`, "Config.Nodes: required", "Config.Providers: required"} {
		require.ErrorContains(t, err, want)
	}
	nine := topology.NewSet(0, 1, 2, 3, 4, 5, 6, 7, 8)
	_, err = topology.New(topology.Config{Policy: topology.BestEffort, Nodes: nine, Providers: []topology.Provider{&provider{}}})
	require.ErrorContains(t, err, "has 9 NUMA nodes, at most 8")
	_, err = topology.New(topology.Config{Nodes: nine, Providers: []topology.Provider{&provider{}}})
	require.NoError(t, err)
	_, err = topology.New(topology.Config{Policy: topology.BestEffort, Nodes: topology.NewSet(0, 1, 2, 3, 4, 5, 6, 7), Providers: []topology.Provider{&provider{}}})
	require.NoError(t, err)
}
