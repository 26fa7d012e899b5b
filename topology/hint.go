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
	Restricted     Policy = "restricted"       // the pod is rejected, unless all resources prefer the same nodes
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
// empty if the resource cannot be given. It returns the best affinity for all, or all nodes,
// and whether the policy admits it. As in the kubelet, an affinity is preferred if it is the
// same preferred hint of each resource; without one the best has as many nodes as the
// resource that needs most of them, or as few less as possible.
func Merge(policy Policy, nodes Set, resources [][]Hint) (affinity Hint, admitted bool) {
	if policy == None {
		return Hint{Nodes: nodes, Preferred: true}, true
	}
	// Each step keeps the different outcomes only, of which there are at most two for
	// each set of nodes.
	outcomes := []outcome{{Hint: Hint{Nodes: nodes, Preferred: true}, open: true}}
	needed := 0
	for _, hints := range resources {
		if hints == nil {
			continue
		}
		if policy == SingleNUMANode {
			hints = slices.DeleteFunc(slices.Clone(hints), func(h Hint) bool { return h.Nodes.Len() != 1 || !h.Preferred })
		} else if len(hints) == 0 {
			hints = []Hint{{Nodes: nodes}} // the others get what suits them
		} else {
			needed = max(needed, slices.MinFunc(hints, func(a, b Hint) int { return cmp.Compare(a.Nodes.Len(), b.Nodes.Len()) }).Nodes.Len())
		}
		outcomes = combine(outcomes, hints)
	}
	best := Hint{Nodes: nodes}
	if len(outcomes) > 0 {
		best = slices.MinFunc(outcomes, func(a, b outcome) int { return compareHints(a.Hint, b.Hint, needed) }).Hint
	}
	return best, policy == BestEffort || best.Preferred
}

// outcome is what suits some resources.
type outcome struct {
	Hint
	open bool // no resource had hints yet
}

// combine returns what suits an outcome and a hint.
func combine(outcomes []outcome, hints []Hint) []outcome {
	var out []outcome
	for _, o := range outcomes {
		for _, h := range hints {
			both := Hint{o.Nodes.Intersect(h.Nodes), o.Preferred && h.Preferred && (o.open || o.Nodes.Equal(h.Nodes))}
			if both.Nodes.Len() == 0 || slices.ContainsFunc(out, func(x outcome) bool { return x.Preferred == both.Preferred && x.Nodes.Equal(both.Nodes) }) {
				continue
			}
			out = append(out, outcome{Hint: both})
		}
	}
	return out
}

// compareHints orders hints: preferred ones first, of which narrow ones come first; then
// those with the needed number of nodes, with fewer, and with more; then those whose highest
// number is the lowest.
func compareHints(a, b Hint, needed int) int {
	if a.Preferred != b.Preferred {
		if a.Preferred {
			return -1
		}
		return 1
	}
	rank := func(h Hint) int { // of the number of nodes
		switch n := h.Nodes.Len(); {
		case h.Preferred:
			return n
		case n <= needed:
			return needed - n
		default:
			return needed + n
		}
	}
	return cmp.Or(cmp.Compare(rank(a), rank(b)), slices.Compare(reversed(a.Nodes.ids), reversed(b.Nodes.ids)))
}

func reversed(ids []int) []int {
	out := slices.Clone(ids)
	slices.Reverse(out)
	return out
}
