package topology

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// maxFileBytes bounds what is read of a file of /sys: a list of all CPUs that Linux can have.
const maxFileBytes = 64 << 10

// CPU is a logical CPU: a hardware thread.
type CPU struct {
	ID     int
	Core   int // CPUs of the same Socket and Core are threads of one core
	Socket int
	Node   int // NUMA node
	// UncoreCache is the level 3 cache: CPUs of the same Socket and UncoreCache share one. It is 0 where the
	// machine has none.
	UncoreCache int
}

// Topology is what a node has. CPUs are sorted by ID.
type Topology struct {
	CPUs []CPU // online ones
	// Memory is what each NUMA node has in bytes, without its huge pages; nodes without memory are left out.
	Memory map[int]int64
	// HugePages is what each NUMA node has in huge pages, in bytes by resource (hugepages-2Mi). Nodes and sizes without any are
	// left out. FreeHugePages is what no process had of them when they were read; nil: not known.
	HugePages, FreeHugePages map[int]map[corev1.ResourceName]int64
	// Distances are how far the memory of NUMA nodes is, by the node that reads it and the one that has it, as the
	// kernel has them: 10 is a node's own. It is nil if the machine does not tell.
	Distances map[int]map[int]int
}

// Detect reads the topology of a Linux machine from its root directory, os.DirFS("/"): the
// files below sys/devices/system. CPUs that are offline are left out. Without NUMA all are
// in node 0.
func Detect(root fs.FS) (Topology, error) {
	online, err := readSet(root, "cpu/online")
	if err != nil {
		return Topology{}, fmt.Errorf("detect CPUs: %w", err)
	}
	if online.Len() == 0 {
		return Topology{}, errors.New("detect CPUs: none is online")
	}
	t := Topology{Memory: map[int]int64{}, Distances: readDistances(root)}
	nodes, err := readNodes(root, &t)
	if err != nil {
		return Topology{}, fmt.Errorf("detect NUMA nodes: %w", err)
	}
	caches := readUncoreCaches(root, online)
	for _, id := range online.ids {
		dir := "cpu/cpu" + strconv.Itoa(id) + "/topology/"
		core, errCore := readCore(root, dir, id)
		socket, errSocket := readInt(root, dir+"physical_package_id", 0)
		if err := errors.Join(errCore, errSocket); err != nil {
			return Topology{}, fmt.Errorf("detect CPUs: %w", err)
		}
		t.CPUs = append(t.CPUs, CPU{ID: id, Core: core, Socket: socket, Node: nodes[id], UncoreCache: caches[id]})
	}
	return t, nil
}

// readCore returns what identifies the core of a CPU in its socket: the first of its threads. The number that the
// machine gives it may be that of a core of another die or cluster too.
func readCore(root fs.FS, dir string, id int) (int, error) {
	threads, err := readSet(root, dir+"thread_siblings_list")
	switch {
	case err == nil && threads.Contains(id):
		return threads.ids[0], nil
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return 0, err
	}
	return readInt(root, dir+"core_id", id)
}

// readNodes returns the NUMA node of each CPU, and adds the memory and huge pages of each node to t.
func readNodes(root fs.FS, t *Topology) (nodes map[int]int, err error) {
	nodes = map[int]int{}
	online, err := readSet(root, "node/online")
	if errors.Is(err, fs.ErrNotExist) {
		return nodes, nil // a kernel without NUMA
	}
	if err != nil {
		return nil, err
	}
	for _, node := range online.ids {
		dir := "node/node" + strconv.Itoa(node)
		cpus, err := readSet(root, dir+"/cpulist")
		if err != nil {
			return nil, err
		}
		for _, id := range cpus.ids {
			nodes[id] = node
		}
		text, err := read(root, dir+"/meminfo")
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		if bytes := memTotal(text); bytes > 0 {
			huge, err := t.readHugePages(root, node)
			if err != nil {
				return nil, err
			}
			t.Memory[node] = max(bytes-huge, 0)
		}
	}
	return nodes, nil
}

// memTotal returns the bytes of a line such as "Node 0 MemTotal: 8042020 kB", 0 without one.
func memTotal(meminfo string) int64 {
	for line := range strings.Lines(meminfo) {
		f := strings.Fields(line)
		if len(f) == 5 && f[2] == "MemTotal:" && f[4] == "kB" {
			if kib, err := strconv.ParseInt(f[3], 10, 64); err == nil && kib > 0 && kib < 1<<50 {
				return kib << 10
			}
		}
	}
	return 0
}

func read(root fs.FS, name string) (string, error) {
	f, err := root.Open("sys/devices/system/" + name)
	if err != nil {
		return "", err
	}
	text, err := io.ReadAll(io.LimitReader(f, maxFileBytes))
	return string(text), errors.Join(err, f.Close())
}

func readSet(root fs.FS, name string) (Set, error) {
	text, err := read(root, name)
	if err != nil {
		return Set{}, err
	}
	s, err := ParseSet(text)
	if err != nil {
		return Set{}, fmt.Errorf("%s: %w", name, err)
	}
	return s, nil
}

// readInt returns the number in a file, or missing if there is no file or the machine does
// not tell, which is -1.
func readInt(root fs.FS, name string, missing int) (int, error) {
	text, err := read(root, name)
	if errors.Is(err, fs.ErrNotExist) {
		return missing, nil
	}
	if err != nil {
		return 0, err
	}
	n, err := strconv.Atoi(strings.TrimSpace(text))
	if err != nil {
		return 0, fmt.Errorf("%s: invalid number %.100q", name, text)
	}
	if n < 0 {
		return missing, nil
	}
	return n, nil
}

// Online returns all CPUs.
func (t Topology) Online() Set { return t.filter(func(CPU) bool { return true }) }

// Nodes returns the NUMA nodes that have CPUs.
func (t Topology) Nodes() Set {
	var ids []int
	for _, c := range t.CPUs {
		ids = append(ids, c.Node)
	}
	return NewSet(ids...)
}

// CPUsOf returns the CPUs of these NUMA nodes.
func (t Topology) CPUsOf(nodes Set) Set {
	return t.filter(func(c CPU) bool { return nodes.Contains(c.Node) })
}

// NodesOf returns the NUMA nodes of these CPUs.
func (t Topology) NodesOf(cpus Set) Set {
	var ids []int
	for _, c := range t.CPUs {
		if cpus.Contains(c.ID) {
			ids = append(ids, c.Node)
		}
	}
	return NewSet(ids...)
}

func (t Topology) filter(keep func(CPU) bool) Set {
	var ids []int
	for _, c := range t.CPUs {
		if keep(c) {
			ids = append(ids, c.ID)
		}
	}
	return NewSet(ids...)
}
