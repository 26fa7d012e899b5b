package topology

import (
	"cmp"
	"fmt"
	"math/bits"
	"slices"
)

// Policy says what becomes of a pod whose resources are not close to each other.
type Policy string

// The policies, by the names that the kubelet has for them.
const (
	None           Policy = "none"             // it is not asked for
	BestEffort     Policy = "best-effort"      // the best that there is
	Restricted     Policy = "restricted"       // the pod is rejected, if an empty node could give more
	SingleNUMANode Policy = "single-numa-node" // the pod is rejected, unless one NUMA node has everything
)

// ParsePolicy returns the policy of that name.
func ParsePolicy(name string) (Policy, error) {
	if p := Policy(name); slices.Contains([]Policy{None, BestEffort, Restricted, SingleNUMANode}, p) {
		return p, nil
	}
	return "", fmt.Errorf("invalid policy %q: must be none, best-effort, restricted or single-numa-node", name)
}

// Hint says that a provider can give a resource from these NUMA nodes.
type Hint struct {
	Nodes Set
	// Preferred says that no fewer nodes could give it even if they were empty.
	Preferred bool
}

// maxNodes bounds the NUMA nodes among which hints are combined: there are two to the power
// of them.
const maxNodes = 8

// MakeHints returns the hints of a provider for n pieces of one resource: those sets of nodes
// in which as many are available. count returns how many these nodes have in all, and how
// many are available; it is called for each set.
func MakeHints(nodes Set, n int64, count func(nodes Set) (all, available int64)) []Hint {
	ids := nodes.ids[:min(len(nodes.ids), maxNodes)]
	least := len(ids) + 1
	hints := []Hint{} // that there are none is a hint too
	for mask := uint(1); mask < 1<<len(ids); mask++ {
		s := fromMask(ids, mask)
		all, available := count(s)
		if all >= n {
			least = min(least, s.Len())
		}
		if available >= n {
			hints = append(hints, Hint{Nodes: s})
		}
	}
	for i := range hints {
		hints[i].Preferred = hints[i].Nodes.Len() == least
	}
	return hints
}

func fromMask(ids []int, mask uint) Set {
	out := make([]int, 0, bits.OnesCount(mask))
	for i, id := range ids {
		if mask&(1<<i) != 0 {
			out = append(out, id)
		}
	}
	return Set{out}
}

// Merge combines the hints of all resources, one list for each: nil if it does not matter,
// empty if the resource cannot be given. It returns the narrowest affinity that suits all,
// or all nodes, and whether the policy admits it.
func Merge(policy Policy, nodes Set, resources [][]Hint) (affinity Hint, admitted bool) {
	best := Hint{Nodes: nodes, Preferred: true}
	if policy == None {
		return best, true
	}
	// Each step keeps the different outcomes only, of which there are at most two for
	// each set of nodes.
	outcomes := []Hint{best}
	for _, hints := range resources {
		if hints == nil {
			continue
		}
		if policy == SingleNUMANode {
			hints = slices.DeleteFunc(slices.Clone(hints), func(h Hint) bool { return h.Nodes.Len() != 1 || !h.Preferred })
		}
		outcomes = combine(outcomes, hints)
	}
	if len(outcomes) == 0 {
		best = Hint{Nodes: nodes}
	} else {
		best = slices.MinFunc(outcomes, compareHints)
	}
	return best, policy == BestEffort || best.Preferred
}

// combine returns what suits an outcome and a hint.
func combine(outcomes, hints []Hint) []Hint {
	var out []Hint
	for _, o := range outcomes {
		for _, h := range hints {
			both := Hint{o.Nodes.Intersect(h.Nodes), o.Preferred && h.Preferred}
			if both.Nodes.Len() == 0 || slices.ContainsFunc(out, func(x Hint) bool { return x.Preferred == both.Preferred && x.Nodes.Equal(both.Nodes) }) {
				continue
			}
			out = append(out, both)
		}
	}
	return out
}

// compareHints orders hints: preferred ones first, then narrow ones, then those with low
// numbers.
func compareHints(a, b Hint) int {
	if a.Preferred != b.Preferred {
		if a.Preferred {
			return -1
		}
		return 1
	}
	return cmp.Or(cmp.Compare(a.Nodes.Len(), b.Nodes.Len()), slices.Compare(a.Nodes.ids, b.Nodes.ids))
}
