package topology_test

import (
	"fmt"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"

	"github.com/sublet-dev/agent/topology"
)

// sysCached is sys with level 3 caches that pairs of CPUs share, and with distances.
func sysCached(t topology.Topology) fstest.MapFS {
	root := sys(t)
	put := func(name, text string) { root["sys/devices/system/"+name] = &fstest.MapFile{Data: []byte(text + "\n")} }
	for _, c := range t.CPUs {
		for i, level := range []int{1, 1, 2, 3} {
			dir := fmt.Sprintf("cpu/cpu%d/cache/index%d/", c.ID, i)
			put(dir+"level", fmt.Sprint(level))
			put(dir+"shared_cpu_list", fmt.Sprint(c.ID))
			if level == 3 {
				put(dir+"shared_cpu_list", fmt.Sprintf("%d-%d", c.ID/2*2, c.ID/2*2+1))
			}
		}
	}
	put("node/node0/distance", "10 21")
	put("node/node1/distance", "21 10")
	return root
}

func TestDetect_CachesAndDistances(t *testing.T) {
	const dir = "sys/devices/system/"
	all := map[int]map[int]int{0: {0: 10, 1: 21}, 1: {0: 21, 1: 10}}
	for name, tt := range map[string]struct {
		change    func(fstest.MapFS)
		caches    []int // of each CPU
		distances map[int]map[int]int
	}{
		"as they are":          {func(fstest.MapFS) {}, []int{0, 0, 2, 2}, all},
		"a CPU is offline":     {func(root fstest.MapFS) { root[dir+"cpu/online"].Data = []byte("1-3") }, []int{1, 2, 2}, all},
		"no level 3":           {func(root fstest.MapFS) { removeAll(root, "cpu/cpu2/cache"); removeAll(root, "cpu/cpu3/cache/index3") }, []int{0, 0, 0, 0}, all},
		"one does not tell":    {func(root fstest.MapFS) { removeAll(root, "cpu/cpu2/cache") }, []int{0, 0, 2, 2}, all},
		"no list":              {func(root fstest.MapFS) { delete(root, dir+"cpu/cpu0/cache/index3/shared_cpu_list") }, []int{0, 0, 2, 2}, all},
		"a list of others":     {func(root fstest.MapFS) { root[dir+"cpu/cpu3/cache/index3/shared_cpu_list"].Data = []byte("0") }, []int{0, 0, 2, 2}, all},
		"no number of a level": {func(root fstest.MapFS) { root[dir+"cpu/cpu0/cache/index0/level"].Data = []byte("x") }, []int{0, 0, 2, 2}, all},
		"no distances":         {func(root fstest.MapFS) { delete(root, dir+"node/node1/distance") }, []int{0, 0, 2, 2}, nil},
		"too few distances":    {func(root fstest.MapFS) { root[dir+"node/node1/distance"].Data = []byte("21") }, []int{0, 0, 2, 2}, nil},
		"no numbers":           {func(root fstest.MapFS) { root[dir+"node/node0/distance"].Data = []byte("10 far") }, []int{0, 0, 2, 2}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			root := sysCached(machine(2, 2, 1))
			tt.change(root)
			got, err := topology.Detect(root)
			require.NoError(t, err)
			var caches []int
			for _, c := range got.CPUs {
				caches = append(caches, c.UncoreCache)
			}
			require.Equal(t, tt.caches, caches)
			require.Equal(t, tt.distances, got.Distances)
		})
	}
}
