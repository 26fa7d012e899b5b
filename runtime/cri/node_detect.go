package cri

import (
	"bufio"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/sublet-dev/agent/internal/hugepages"
)

// DetectNode reads what a Node is about from a machine's /proc and /sys; root is
// its root directory, os.DirFS("/"). What cannot be read is left at its default:
// nothing of it is needed to run pods, all of it makes them run as they would
// under a kubelet.
func DetectNode(root fs.FS) Node {
	memory, swap := meminfo(root)
	n := Node{MemoryCapacity: memory, SwapCapacity: swap}
	controllers, err := fs.ReadFile(root, "sys/fs/cgroup/cgroup.controllers")
	n.CgroupV2 = err == nil
	n.NoSwapController = !hasSwapController(root, n.CgroupV2)
	_, err = fs.Stat(root, "sys/fs/selinux/enforce")
	n.SELinux = err == nil
	// Limits of huge pages fail where nothing can enforce them.
	enforced := slices.Contains(strings.Fields(string(controllers)), "hugetlb")
	if _, err := fs.Stat(root, "sys/fs/cgroup/hugetlb"); err == nil {
		enforced = true
	}
	if enforced {
		n.HugePageSizes = hugePageSizes(root)
	}
	// How hot each processor got tells what its neighbours do.
	if hot, err := fs.Glob(root, "sys/devices/system/cpu/cpu[0-9]*/thermal_throttle"); err == nil {
		for _, p := range hot {
			n.MaskedPaths = append(n.MaskedPaths, "/"+p)
		}
	}
	return n
}

// hasSwapController reports whether the swap of cgroups can be bounded. The root cgroup
// of version 2 has no bounds, so those below it are asked.
func hasSwapController(root fs.FS, unified bool) bool {
	if !unified {
		_, err := fs.Stat(root, "sys/fs/cgroup/memory/memory.memsw.limit_in_bytes")
		return err == nil
	}
	files, err := fs.Glob(root, "sys/fs/cgroup/*/memory.swap.max")
	if own, ok := ownCgroup(root); ok && len(files) == 0 {
		_, err = fs.Stat(root, path.Join("sys/fs/cgroup", own, "memory.swap.max"))
		return err == nil
	}
	return err == nil && len(files) > 0
}

// ownCgroup returns the cgroup of this process in the unified hierarchy.
func ownCgroup(root fs.FS) (group string, ok bool) {
	data, err := fs.ReadFile(root, "proc/self/cgroup")
	if err != nil {
		return "", false
	}
	for line := range strings.Lines(string(data)) {
		if group, ok = strings.CutPrefix(strings.TrimSpace(line), "0::/"); ok {
			return group, true
		}
	}
	return "", false
}

// meminfo returns the machine's memory and swap in bytes.
func meminfo(root fs.FS) (memory, swap int64) {
	f, err := root.Open("proc/meminfo")
	if err != nil {
		return 0, 0
	}
	defer func() { _ = f.Close() }()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		words := strings.Fields(lines.Text())
		if len(words) < 2 {
			continue
		}
		kib, err := strconv.ParseInt(words[1], 10, 64)
		if err != nil || kib < 0 || kib > 1<<50 {
			continue
		}
		switch words[0] {
		case "MemTotal:":
			memory = kib << 10
		case "SwapTotal:":
			swap = kib << 10
		}
	}
	return memory, swap
}

func hugePageSizes(root fs.FS) []string {
	var names []string
	for _, size := range hugepages.Sizes(root) {
		names = append(names, hugepages.Name(size))
	}
	return names
}
