package topology

import (
	"math"
	"math/bits"
	"slices"
)

// Merge combines the hints of all resources, one list for each: nil if it does not matter,
// empty if the resource cannot be given. It returns the best affinity for all, or all nodes,
// and whether the policy admits it. As in the kubelet, an affinity is preferred if it is the
// same preferred hint of each resource; without one the best has as many nodes as the
// resource that needs most of them, or as few less as possible. Of more than 16 nodes the first are combined.
func Merge(policy Policy, nodes Set, resources [][]Hint) (affinity Hint, admitted bool) {
	return merger{policy: policy, nodes: nodes}.merge(resources)
}

// merger combines hints.
type merger struct {
	policy Policy
	nodes  Set
	// distances, if they count, decide between sets of as many nodes.
	distances map[int]map[int]int
}

func (m merger) merge(resources [][]Hint) (affinity Hint, admitted bool) {
	if m.policy == None {
		return Hint{Nodes: m.nodes, Preferred: true}, true
	}
	var all []suitable
	for _, hints := range resources {
		if hints != nil {
			all = append(all, m.suitable(hints))
		}
	}
	if len(all) == 0 {
		return Hint{Nodes: m.nodes, Preferred: true}, true
	}
	best, ok := m.best(all)
	if !ok {
		best = Hint{Nodes: m.nodes}
	}
	return best, m.policy == BestEffort || best.Preferred
}

// suitable is the sets of nodes that suit a resource, by their masks.
type suitable struct {
	any, preferred []bool
	least          int // how many nodes the smallest set has; 0 if the resource cannot be given
}

func (m merger) suitable(hints []Hint) suitable {
	size := 1 << len(m.ids())
	s := suitable{any: make([]bool, size), preferred: make([]bool, size)}
	if m.policy == SingleNUMANode {
		hints = slices.DeleteFunc(slices.Clone(hints), func(h Hint) bool { return h.Nodes.Len() != 1 || !h.Preferred })
	} else if len(hints) == 0 {
		s.any[size-1] = true // the others get what suits them
		return s
	}
	for _, h := range hints {
		mask := m.mask(h.Nodes)
		s.any[mask] = true
		s.preferred[mask] = s.preferred[mask] || h.Preferred
		if s.least == 0 || h.Nodes.Len() < s.least {
			s.least = h.Nodes.Len()
		}
	}
	return s
}

// best returns the best affinity for all resources, of which there is at least one. ok is false if there is none.
func (m merger) best(all []suitable) (affinity Hint, ok bool) {
	either, same, needed := all[0].any, slices.Clone(all[0].preferred), all[0].least
	for _, s := range all[1:] {
		either, needed = intersections(either, s.any), max(needed, s.least)
		for mask := range same {
			same[mask] = same[mask] && s.preferred[mask]
		}
	}
	found, rank := same, bits.OnesCount
	if !slices.Contains(same[1:], true) {
		found, rank = either, func(mask uint) int {
			n := bits.OnesCount(mask)
			if n <= needed {
				return needed - n
			}
			return needed + n
		}
	} else {
		ok = true
	}
	best, least, closest := uint(0), math.MaxInt, 0
	for mask := uint(1); mask < uint(len(found)); mask++ {
		n := rank(mask)
		if !found[mask] || n > least {
			continue
		}
		// Of equal ones, that whose highest number is the lowest.
		if d := m.distance(mask); n < least || d < closest {
			best, least, closest = mask, n, d
		}
	}
	return Hint{Nodes: fromMask(m.ids(), best), Preferred: ok}, best != 0
}

// intersections returns the masks of what any two sets of a and b have in common. How many pairs have at least some nodes
// in common is the product of how many of a and of b have these; what they have in common beside is subtracted then.
func intersections(a, b []bool) []bool {
	pairs, other := supersets(a), supersets(b)
	for mask := range pairs {
		pairs[mask] *= other[mask]
	}
	out := make([]bool, len(pairs))
	for bit := 1; bit < len(pairs); bit <<= 1 {
		for mask := range pairs {
			if mask&bit == 0 {
				pairs[mask] -= pairs[mask|bit]
			}
		}
	}
	for mask, n := range pairs {
		out[mask] = n > 0 && mask > 0
	}
	return out
}

// supersets returns, for each mask, how many of the sets contain it.
func supersets(sets []bool) []int64 {
	counts := make([]int64, len(sets))
	for mask, ok := range sets {
		if ok {
			counts[mask] = 1
		}
	}
	for bit := 1; bit < len(sets); bit <<= 1 {
		for mask := range counts {
			if mask&bit == 0 {
				counts[mask] += counts[mask|bit]
			}
		}
	}
	return counts
}

// distance returns how far the nodes are from each other in all, 0 if that does not count.
func (m merger) distance(mask uint) int {
	if m.distances == nil || m.policy == SingleNUMANode {
		return 0
	}
	sum, nodes := 0, fromMask(m.ids(), mask).ids
	for _, from := range nodes {
		for _, to := range nodes {
			sum += m.distances[from][to]
		}
	}
	return sum
}

// ids returns the nodes that are combined.
func (m merger) ids() []int { return m.nodes.ids[:min(len(m.nodes.ids), maxNodes)] }

func (m merger) mask(nodes Set) (mask uint) {
	for i, id := range m.ids() {
		if nodes.Contains(id) {
			mask |= 1 << i
		}
	}
	return mask
}
