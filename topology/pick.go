package topology

import (
	"cmp"
	"slices"
)

// Preferences say which CPUs PickBy takes.
type Preferences struct {
	// FullCores takes CPUs of those cores only of which all CPUs are available and taken.
	FullCores bool
	// AlignByUncoreCache takes CPUs that share as few uncore caches as possible.
	AlignByUncoreCache bool
	// DistributeAcrossNodes takes CPUs from as few NUMA nodes as can give about as many each, and from those with
	// most available CPUs. Without it nodes are filled one after the other.
	DistributeAcrossNodes bool
}

// Pick returns n of the available CPUs that are close to each other: those of one NUMA node if one
// has so many, else of one socket, else whole ones and then parts of as few as possible. Of these it takes whole
// cores first, then threads of cores that are in part used. It takes from the smallest part in which the rest fits, so
// that large parts stay whole. ok is false if there are too few.
func (t Topology) Pick(available Set, n int) (cpus Set, ok bool) {
	return t.PickBy(Preferences{}, available, n)
}

// PickBy does what Pick does, by preferences. With FullCores, ok is false too if no whole cores have n CPUs together.
func (t Topology) PickBy(p Preferences, available Set, n int) (cpus Set, ok bool) {
	available = available.Intersect(t.Online())
	if p.FullCores {
		available = t.FullCores(available)
	}
	if n < 0 || available.Len() < n {
		return Set{}, false
	}
	if p.DistributeAcrossNodes {
		if cpus, ok = t.distribute(p, available, n); ok {
			return cpus, true
		}
	}
	if cpus = t.pack(p, available, n); t.areFullCores(p, cpus) {
		return cpus, true
	}
	return t.pickCores(available, n)
}

// areFullCores reports whether the CPUs are full cores, if these are required.
func (t Topology) areFullCores(p Preferences, cpus Set) bool {
	return !p.FullCores || t.FullCores(cpus).Len() == cpus.Len()
}

// FullCores returns those of the CPUs that are of cores of which all CPUs that are online are among them.
func (t Topology) FullCores(cpus Set) Set {
	var full []int
	for _, g := range t.groups(cpus, ofCore) {
		if g.allFree {
			full = append(full, g.free.ids...)
		}
	}
	return NewSet(full...)
}

// CPUsPerCore returns how many CPUs a core has, on average and rounded down, as a kubelet counts them; at least 1.
func (t Topology) CPUsPerCore() int {
	return max(len(t.CPUs)/max(len(t.groups(t.Online(), ofCore)), 1), 1)
}

// pack returns n of the free CPUs from parts of the machine that are filled one after the other. There are at least n.
func (t Topology) pack(p Preferences, available Set, n int) Set {
	if p.AlignByUncoreCache { // also if another node is smaller
		if i, caches := t.smallest(available, n, ofCache); i >= 0 {
			return t.pickThreads(caches[i].free, n)
		}
	}
	return t.packParts(p, available, n)
}

// packParts returns n of the free CPUs: those of the smallest NUMA node or socket that has so many, or of as few as
// possible, whole ones first. There are at least n.
func (t Topology) packParts(p Preferences, free Set, n int) Set {
	if n == 0 {
		return Set{}
	}
	i, nodes := t.smallest(free, n, ofNode)
	if i >= 0 && len(nodes) > 1 {
		return t.packParts(p, nodes[i].free, n)
	}
	i, sockets := t.smallest(free, n, ofSocket)
	if i >= 0 && len(sockets) > 1 {
		return t.packParts(p, sockets[i].free, n)
	}
	if len(nodes) == 1 && len(sockets) == 1 {
		return t.pickWithin(p, free, n)
	}
	// No one has: of those that are larger and of those that are parts of them, whole ones, largest first.
	parts := [][]group{sockets, nodes}
	if len(sockets) > len(nodes) {
		parts = [][]group{nodes, sockets}
	}
	for _, groups := range parts {
		slices.SortStableFunc(groups, largerFirst)
		if picked := freeGroups(groups, n); picked.Len() > 0 {
			return picked.Union(t.packParts(p, free.Minus(picked), n-picked.Len()))
		}
	}
	if p.AlignByUncoreCache {
		return t.pickWithin(p, free, n)
	}
	largest := parts[0][0]
	if len(parts[0]) == 1 {
		largest = parts[1][0]
	}
	return largest.free.Union(t.packParts(p, free.Minus(largest.free), n-largest.free.Len()))
}

// freeGroups returns the CPUs of parts that are free as a whole, up to n.
func freeGroups(groups []group, n int) (picked Set) {
	for _, g := range groups {
		if g.allFree && g.free.Len() <= n-picked.Len() {
			picked = picked.Union(g.free)
		}
	}
	return picked
}

// smallest returns the parts that have free CPUs, and which is the smallest one that has n of them, or -1.
func (t Topology) smallest(free Set, n int, of part) (int, []group) {
	groups := t.groups(free, of)
	return slices.IndexFunc(groups, func(g group) bool { return g.free.Len() >= n }), groups
}

// pickWithin returns n of the free CPUs of a part of the machine. There are at least n.
func (t Topology) pickWithin(p Preferences, free Set, n int) Set {
	var picked Set
	for p.AlignByUncoreCache && picked.Len() < n {
		i, caches := t.smallest(free.Minus(picked), n-picked.Len(), ofCache)
		if i >= 0 {
			return picked.Union(t.pickThreads(caches[i].free, n-picked.Len()))
		}
		picked = picked.Union(slices.MaxFunc(caches, func(a, b group) int { return -largerFirst(a, b) }).free)
	}
	return picked.Union(t.pickThreads(free.Minus(picked), n-picked.Len()))
}

// distribute returns n of the free CPUs, of the fewest NUMA nodes that can give equal shares.
func (t Topology) distribute(p Preferences, free Set, n int) (cpus Set, ok bool) {
	unit := 1
	if p.FullCores {
		unit = t.CPUsPerCore()
	}
	if n%unit != 0 {
		return Set{}, false
	}
	// Those with most free CPUs: what is left is most even then.
	nodes := t.groups(free, ofNode)
	slices.SortStableFunc(nodes, largerFirst)
	for k := 1; k <= len(nodes); k++ {
		shares, ok := evenShares(nodes[:k], n, unit)
		if !ok {
			continue
		}
		var picked Set
		for i, share := range shares {
			picked = picked.Union(t.pack(p, nodes[i].free, share))
		}
		return picked, t.areFullCores(p, picked)
	}
	return Set{}, false
}

// evenShares returns how many of n CPUs each group is to give, in units. What cannot be divided comes from those with
// most free ones.
func evenShares(groups []group, n, unit int) (shares []int, ok bool) {
	even := n / len(groups) / unit * unit
	left := make([]int, len(groups))
	for i, g := range groups {
		shares, left[i] = append(shares, even), g.free.Len()-even
		if left[i] < 0 {
			return nil, false
		}
	}
	for rest := n - even*len(groups); rest > 0; rest -= unit {
		i := slices.Index(left, slices.Max(left))
		if left[i] < unit {
			return nil, false
		}
		shares[i], left[i] = shares[i]+unit, left[i]-unit
	}
	return shares, true
}

// pickThreads returns n of the free CPUs: whole cores first, of which as few as possible are
// split. There are at least n.
func (t Topology) pickThreads(free Set, n int) Set {
	cores := t.groups(free, ofCore)
	var picked Set
	for _, g := range cores {
		if g.allFree && g.free.Len() <= n-picked.Len() {
			picked = picked.Union(g.free)
		}
	}
	// The rest are threads: of cores in part used before, which are the smaller groups.
	for _, g := range cores {
		rest := g.free.Minus(picked).ids
		picked = picked.Union(NewSet(rest[:min(len(rest), n-picked.Len())]...))
	}
	return picked
}

// pickCores returns whole cores that have n CPUs together, where cores differ in how many they have.
func (t Topology) pickCores(free Set, n int) (cpus Set, ok bool) {
	cores := t.groups(free, ofCore)
	slices.SortStableFunc(cores, largerFirst)
	for _, g := range cores {
		if g.allFree && g.free.Len() <= n-cpus.Len() {
			cpus = cpus.Union(g.free)
		}
	}
	if cpus.Len() < n {
		return Set{}, false
	}
	return cpus, true
}

// part returns what identifies the part of the machine in which a CPU is.
type part func(CPU) [3]int

func ofNode(c CPU) [3]int   { return [3]int{c.Node} }
func ofSocket(c CPU) [3]int { return [3]int{c.Socket} }
func ofCore(c CPU) [3]int   { return [3]int{c.Socket, c.Core} }

// ofCache is the part of a cache that is in one NUMA node.
func ofCache(c CPU) [3]int { return [3]int{c.Node, c.Socket, c.UncoreCache} }

// group is a part of the machine.
type group struct {
	free    Set
	allFree bool // all of its CPUs are free
}

func largerFirst(a, b group) int { return cmp.Compare(b.free.Len(), a.free.Len()) }

// groups returns the parts that have free CPUs, those with few first, then those with low
// numbers.
func (t Topology) groups(free Set, of part) []group {
	all, have := map[[3]int][]int{}, map[[3]int][]int{}
	for _, c := range t.CPUs {
		key := of(c)
		all[key] = append(all[key], c.ID)
		if free.Contains(c.ID) {
			have[key] = append(have[key], c.ID)
		}
	}
	var out []group
	for key, ids := range have {
		out = append(out, group{NewSet(ids...), len(ids) == len(all[key])})
	}
	slices.SortFunc(out, func(a, b group) int {
		return cmp.Or(cmp.Compare(a.free.Len(), b.free.Len()), cmp.Compare(a.free.ids[0], b.free.ids[0]))
	})
	return out
}
