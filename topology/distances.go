package topology

import (
	"fmt"
	"io/fs"
	"strconv"
	"strings"
)

const (
	// uncoreLevel is the level of the caches that cores share.
	uncoreLevel = 3
	// maxCaches bounds the caches of one CPU that are looked at.
	maxCaches = 16
)

// readUncoreCaches returns what identifies the level 3 cache of each CPU: the first CPU that shares it. CPUs without
// one are left out, and those of which the machine does not tell.
func readUncoreCaches(root fs.FS, online Set) map[int]int {
	caches := map[int]int{}
	for _, id := range online.ids {
		if _, ok := caches[id]; ok {
			continue // found with the first CPU that shares it
		}
		shared := readUncoreCache(root, id).Intersect(online)
		if !shared.Contains(id) {
			continue
		}
		for _, other := range shared.ids {
			caches[other] = shared.ids[0]
		}
	}
	return caches
}

// readUncoreCache returns the CPUs that share the level 3 cache of one.
func readUncoreCache(root fs.FS, id int) Set {
	for i := range maxCaches {
		dir := fmt.Sprintf("cpu/cpu%d/cache/index%d/", id, i)
		level, err := readInt(root, dir+"level", -1)
		switch {
		case err != nil || level < 0:
			return Set{}
		case level == uncoreLevel:
			shared, err := readSet(root, dir+"shared_cpu_list")
			if err != nil {
				return Set{}
			}
			return shared
		}
	}
	return Set{}
}

// readDistances returns the distances between NUMA nodes, nil if the machine does not tell all.
func readDistances(root fs.FS) map[int]map[int]int {
	online, err := readSet(root, "node/online")
	if err != nil {
		return nil
	}
	distances := map[int]map[int]int{}
	for _, from := range online.ids {
		text, err := read(root, "node/node"+strconv.Itoa(from)+"/distance")
		row := strings.Fields(text)
		if err != nil || len(row) != online.Len() { // one for each node that is online, in their order
			return nil
		}
		distances[from] = map[int]int{}
		for i, to := range online.ids {
			n, err := strconv.Atoi(row[i])
			if err != nil || n < 0 {
				return nil
			}
			distances[from][to] = n
		}
	}
	return distances
}
