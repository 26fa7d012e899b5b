package topology

import (
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

const (
	// defaultMaxNodes is how many NUMA nodes are combined unless more are allowed.
	defaultMaxNodes = 8
	// maxNodes bounds the NUMA nodes among which hints are combined: there are two to the power of them.
	maxNodes = 16
)

// MakeHints returns the hints of a provider for n pieces of one resource: those sets of nodes
// in which as many are available. count returns how many these nodes have in all, and how
// many are available; it is called for each set. Of more than 16 nodes the first are taken.
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
