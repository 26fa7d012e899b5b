package topology_test

import (
	"fmt"

	"github.com/sublet-dev/agent/topology"
)

// Two CPUs near a device are the threads of one core of its NUMA node.
func Example() {
	node := machine(2, 4, 2)
	cpus := topology.MakeHints(node.Nodes(), 2, func(nodes topology.Set) (all, available int64) {
		n := int64(node.CPUsOf(nodes).Len())
		return n, n
	})
	device := []topology.Hint{{Nodes: topology.NewSet(1), Preferred: true}}
	affinity, admitted := topology.Merge(topology.SingleNUMANode, node.Nodes(), [][]topology.Hint{cpus, device})
	picked, _ := node.Pick(node.CPUsOf(affinity.Nodes), 2)
	fmt.Println("node", affinity.Nodes, "CPUs", picked, admitted)
	// Output: node 1 CPUs 4,12 true
}
