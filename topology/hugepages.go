package topology

import (
	"fmt"
	"io/fs"

	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/internal/hugepages"
)

// readHugePages adds the huge pages of a NUMA node. It returns their bytes: the kernel has set them aside, so that they
// are no memory for anything else.
func (t *Topology) readHugePages(root fs.FS, node int) (bytes int64, err error) {
	for _, size := range hugepages.Sizes(root) {
		dir := fmt.Sprintf("node/node%d/hugepages/hugepages-%dkB/", node, size>>10)
		n, err := readInt(root, dir+"nr_hugepages", 0)
		if err != nil {
			return 0, err
		}
		free, err := readInt(root, dir+"free_hugepages", n)
		if err != nil {
			return 0, err
		}
		if n == 0 {
			continue
		}
		bytes += size * int64(n)
		set(&t.HugePages, node, hugepages.ResourceName(size), size*int64(n))
		set(&t.FreeHugePages, node, hugepages.ResourceName(size), size*int64(free))
	}
	return bytes, nil
}

// set sets an entry of maps, which it makes.
func set(m *map[int]map[corev1.ResourceName]int64, node int, name corev1.ResourceName, bytes int64) {
	if *m == nil {
		*m = map[int]map[corev1.ResourceName]int64{}
	}
	if (*m)[node] == nil {
		(*m)[node] = map[corev1.ResourceName]int64{}
	}
	(*m)[node][name] = bytes
}
