package topology_test

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sublet-dev/agent/topology"
)

// cached makes a topology of NUMA nodes, each with so many level 3 caches, which cores of so many threads share.
// Threads of one core are numbered apart.
func cached(nodes, caches, cores, threads int) topology.Topology {
	t := topology.Topology{}
	all := nodes * caches * cores
	for id := range all * threads {
		core := id % all
		node := core / (caches * cores)
		t.CPUs = append(t.CPUs, topology.CPU{ID: id, Core: core, Socket: node, Node: node, UncoreCache: core / cores})
	}
	return t
}

// hybrid has two cores of two threads and three of one.
func hybrid() topology.Topology {
	return topology.Topology{CPUs: []topology.CPU{{ID: 0}, {ID: 1}, {ID: 2, Core: 2}, {ID: 3, Core: 2}, {ID: 4, Core: 4}, {ID: 5, Core: 5}, {ID: 6, Core: 6}}}
}

func TestPickBy(t *testing.T) {
	// Nodes with the cores 0-7 and 8-15, of which each four share a cache. Core 0 has the CPUs 0 and 16.
	big := cached(2, 2, 4, 2)
	for name, tt := range map[string]struct {
		machine   topology.Topology
		prefer    topology.Preferences
		available string
		n         int
		want      string // empty: not ok
	}{
		"whole cores":                         {big, topology.Preferences{FullCores: true}, "0-3,18", 2, "2,18"},
		"half a core":                         {big, topology.Preferences{FullCores: true}, "0-31", 3, ""},
		"too few whole cores":                 {big, topology.Preferences{FullCores: true}, "0-5,16", 4, ""},
		"all whole cores":                     {big, topology.Preferences{FullCores: true}, "0-31", 32, "0-31"},
		"cores that differ":                   {hybrid(), topology.Preferences{FullCores: true}, "0-6", 3, "4-6"},
		"cores that differ, small ones first": {hybrid(), topology.Preferences{FullCores: true}, "0-4", 2, "0-1"},
		"a single thread":                     {hybrid(), topology.Preferences{FullCores: true}, "0-3", 1, ""},
		"packed":                              {big, topology.Preferences{}, "0-31", 20, "0-9,16-25"},
		"equal shares":                        {big, topology.Preferences{DistributeAcrossNodes: true}, "0-31", 20, "0-4,8-12,16-20,24-28"},
		"one more of one":                     {big, topology.Preferences{DistributeAcrossNodes: true}, "0-31", 17, "0-4,8-11,16-19,24-27"},
		"shares of whole cores":               {big, topology.Preferences{DistributeAcrossNodes: true, FullCores: true}, "0-31", 18, "0-4,8-11,16-20,24-27"},
		"one node suffices":                   {big, topology.Preferences{DistributeAcrossNodes: true}, "0-31", 4, "0-1,16-17"},
		"the one with most":                   {big, topology.Preferences{DistributeAcrossNodes: true}, "0-3,8-15", 4, "8-11"},
		"no equal shares":                     {big, topology.Preferences{DistributeAcrossNodes: true}, "0,8-15,24-31", 17, "0,8-15,24-31"},
		"what is left of a small share":       {big, topology.Preferences{DistributeAcrossNodes: true}, "0-2,8-11", 6, "0-2,8-10"},
		"the cache in which it fits":          {big, topology.Preferences{AlignByUncoreCache: true}, "0-1,4-7,16-17,20-23", 6, "4-6,20-22"},
		"a node before a cache":               {big, topology.Preferences{}, "0-1,4-5,8-11,16-17,20-21,24-31", 8, "0-1,4-5,16-17,20-21"},
		"a cache of another node":             {big, topology.Preferences{AlignByUncoreCache: true}, "0-1,4-5,8-11,16-17,20-21,24-31", 8, "8-11,24-27"},
		"a whole cache and a part":            {big, topology.Preferences{AlignByUncoreCache: true}, "0-1,8-11,14,16-17,24-27,30", 10, "8-11,14,24-27,30"},
		"a node and a cache":                  {big, topology.Preferences{AlignByUncoreCache: true}, "0-7,9,12-15,16-23,25,28-31", 20, "0-7,12-13,16-23,28-29"},
		"whole cores of a cache":              {big, topology.Preferences{AlignByUncoreCache: true, FullCores: true}, "0-1,4-6,16,20-22", 4, "4-5,20-21"},
		"no cache":                            {machine(2, 4, 1), topology.Preferences{AlignByUncoreCache: true}, "0-7", 3, "0-2"},
	} {
		t.Run(name, func(t *testing.T) {
			available, err := topology.ParseSet(tt.available)
			require.NoError(t, err)
			got, ok := tt.machine.PickBy(tt.prefer, available, tt.n)
			require.Equal(t, tt.want != "", ok)
			require.Equal(t, tt.want, got.String())
		})
	}
}

// Whatever is available, what is picked is as many of it, in whole cores if required, and in one cache if one has them.
func TestPickBy_KeepsItsPromises(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	irregular := cached(2, 2, 2, 2)
	irregular.CPUs = irregular.CPUs[:13] // three threads are offline
	for _, m := range []topology.Topology{cached(1, 1, 4, 1), cached(2, 2, 2, 2), cached(4, 1, 2, 2), cached(2, 3, 1, 4), hybrid(), irregular} {
		isRegular := m.CPUsPerCore()*len(coresOf(m, m.Online())) == len(m.CPUs)
		for range 300 {
			var ids []int
			for _, id := range m.Online().IDs() {
				if random.IntN(4) > 0 {
					ids = append(ids, id)
				}
			}
			available, n := topology.NewSet(ids...), random.IntN(len(m.CPUs)+2)
			p := topology.Preferences{FullCores: random.IntN(2) > 0, AlignByUncoreCache: random.IntN(2) > 0, DistributeAcrossNodes: random.IntN(2) > 0}
			got, ok := m.PickBy(p, available, n)
			if !ok {
				require.Empty(t, got.IDs())
				require.True(t, n > available.Len() || p.FullCores && !hasFullCores(m, available, n), "%+v: %d of %s", p, n, available)
				continue
			}
			require.Equal(t, n, got.Len(), "%+v", p)
			require.True(t, got.IsSubset(available))
			if p.FullCores {
				require.True(t, m.FullCores(got).Equal(got), "%+v: %s", p, got)
			}
			if usable := available; p.AlignByUncoreCache && !p.DistributeAcrossNodes && n > 0 {
				if p.FullCores {
					usable = m.FullCores(available)
				}
				if mostOf(cachesOf(m, usable)) >= n && (!p.FullCores || isRegular) {
					require.Len(t, cachesOf(m, got), 1, "%+v: %d of %s: %s", p, n, available, got)
				}
			}
		}
	}
}

// hasFullCores reports whether some whole cores have n CPUs together.
func hasFullCores(m topology.Topology, available topology.Set, n int) bool {
	sizes := coresOf(m, m.FullCores(available))
	sums := map[int]bool{0: true}
	for _, size := range sizes {
		next := map[int]bool{}
		for sum := range sums {
			next[sum], next[sum+size] = true, true
		}
		sums = next
	}
	return sums[n]
}

func coresOf(m topology.Topology, cpus topology.Set) map[[2]int]int {
	sizes := map[[2]int]int{}
	for _, c := range m.CPUs {
		if cpus.Contains(c.ID) {
			sizes[[2]int{c.Socket, c.Core}]++
		}
	}
	return sizes
}

func cachesOf(m topology.Topology, cpus topology.Set) map[[3]int]int {
	caches := map[[3]int]int{}
	for _, c := range m.CPUs {
		if cpus.Contains(c.ID) {
			caches[[3]int{c.Node, c.Socket, c.UncoreCache}]++
		}
	}
	return caches
}

func mostOf(counts map[[3]int]int) (most int) {
	for _, n := range counts {
		most = max(most, n)
	}
	return most
}

// Shares are as even as they can be, and leave nodes as equal as they can be: what trying all of them finds.
func TestPickBy_DistributesEvenly(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	m := cached(3, 1, 5, 1)
	for range 200 {
		var ids []int
		free := make([]int, 3)
		for _, c := range m.CPUs {
			if random.IntN(3) > 0 {
				ids, free[c.Node] = append(ids, c.ID), free[c.Node]+1
			}
		}
		n := 1 + random.IntN(max(len(ids), 1))
		want, possible := leastUneven(free, n)
		got, ok := m.PickBy(topology.Preferences{DistributeAcrossNodes: true}, topology.NewSet(ids...), n)
		require.Equal(t, len(ids) >= n, ok)
		if !ok || !possible {
			continue
		}
		left := append([]int(nil), free...)
		for _, c := range m.CPUs {
			if got.Contains(c.ID) {
				left[c.Node]--
			}
		}
		require.Equal(t, want, squares(left), "%d of %v: %s", n, free, got)
	}
}

// leastUneven returns the least sum of squares of what is left, if n CPUs are taken from as few nodes as can give an
// equal part each.
func leastUneven(free []int, n int) (least int, ok bool) {
	for k := 1; k <= len(free); k++ {
		for mask := range 1 << len(free) {
			var nodes []int
			for i := range free {
				if mask&(1<<i) != 0 {
					nodes = append(nodes, i)
				}
			}
			if len(nodes) != k {
				continue
			}
			var try func(i, rest int, left []int)
			try = func(i, rest int, left []int) {
				if i == len(nodes) {
					if s := squares(left); rest == 0 && (!ok || s < least) {
						least, ok = s, true
					}
					return
				}
				for share := n / k; share <= min(rest, free[nodes[i]]); share++ {
					next := append([]int(nil), left...)
					next[nodes[i]] -= share
					try(i+1, rest-share, next)
				}
			}
			try(0, n, free)
		}
		if ok {
			return least, true
		}
	}
	return 0, false
}

func squares(all []int) (sum int) {
	for _, n := range all {
		sum += n * n
	}
	return sum
}

func TestTopology_CPUsPerCore(t *testing.T) {
	require.Equal(t, 2, cached(2, 2, 4, 2).CPUsPerCore())
	require.Equal(t, 1, hybrid().CPUsPerCore())
	require.Equal(t, 1, topology.Topology{}.CPUsPerCore())
}
