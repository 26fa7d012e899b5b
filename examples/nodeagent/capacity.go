package main

import (
	"fmt"
	"io/fs"
	"math"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/sublet-dev/agent/node"
	"github.com/sublet-dev/agent/runtime/cri"
)

// detectCapacity returns what the machine has for all processes: cpu, memory, huge
// pages, process ids and ephemeral storage. root is the machine's root directory.
// Limits of cgroupRoot and of the cgroups above it count as the machine's, for an
// agent that runs in a container or has a slice of the machine. What cannot be
// read is left out.
func detectCapacity(root fs.FS, cgroupRoot string) corev1.ResourceList {
	capacity := corev1.ResourceList{}
	cpu := int64(onlineCPUs(root)) * 1000
	if quota, ok := cgroupCPU(root, cgroupRoot); ok {
		cpu = min(cpu, quota)
	}
	capacity[corev1.ResourceCPU] = *resource.NewMilliQuantity(cpu, resource.DecimalSI)
	memory := cri.DetectNode(root).MemoryCapacity
	if limit, ok := cgroupLimit(root, cgroupRoot, "memory", "memory.limit_in_bytes", "memory.max"); ok && (memory == 0 || limit < memory) {
		memory = limit
	}
	if memory > 0 {
		capacity[corev1.ResourceMemory] = *resource.NewQuantity(memory, resource.BinarySI)
	}
	pids := int64(math.MaxInt64)
	for _, file := range []string{"proc/sys/kernel/pid_max", "proc/sys/kernel/threads-max"} {
		if n, ok := readNumber(root, file); ok {
			pids = min(pids, n)
		}
	}
	if limit, ok := cgroupLimit(root, cgroupRoot, "pids", "pids.max", "pids.max"); ok {
		pids = min(pids, limit)
	}
	if pids < math.MaxInt64 {
		capacity[node.ResourcePIDs] = *resource.NewQuantity(pids, resource.DecimalSI)
	}
	for size, count := range hugePages(root) {
		name := corev1.ResourceHugePagesPrefix + resource.NewQuantity(size, resource.BinarySI).String()
		capacity[corev1.ResourceName(name)] = *resource.NewQuantity(size*count, resource.BinarySI)
	}
	return capacity
}

// onlineCPUs counts the processors in a list such as 0-3,8.
func onlineCPUs(root fs.FS) int {
	b, err := fs.ReadFile(root, "sys/devices/system/cpu/online")
	if err != nil {
		return runtime.NumCPU()
	}
	n := 0
	for part := range strings.SplitSeq(strings.TrimSpace(string(b)), ",") {
		first, last, isRange := strings.Cut(part, "-")
		if !isRange {
			last = first
		}
		from, err := strconv.Atoi(first)
		to, errLast := strconv.Atoi(last)
		if err != nil || errLast != nil || to < from {
			return runtime.NumCPU()
		}
		n += to - from + 1
	}
	return n
}

// noLimit is above what any machine has: version 1 of cgroups writes "no limit" as
// a number of this size.
const noLimit = 1 << 60

// cgroupLimit returns the lowest limit of a cgroup and of those above it.
func cgroupLimit(root fs.FS, group, controller, v1, v2 string) (limit int64, ok bool) {
	limit = noLimit
	for _, dir := range ancestors(group) {
		for _, file := range []string{path.Join("sys/fs/cgroup", controller, dir, v1), path.Join("sys/fs/cgroup", dir, v2)} {
			if n, ok := readNumber(root, file); ok {
				limit = min(limit, n)
			}
		}
	}
	return limit, limit < noLimit
}

// cgroupCPU returns the lowest CPU quota of a cgroup and of those above it, in
// thousandths of a CPU.
func cgroupCPU(root fs.FS, group string) (milli int64, ok bool) {
	milli = noLimit
	for _, dir := range ancestors(group) {
		quota, hasQuota := readNumber(root, path.Join("sys/fs/cgroup/cpu", dir, "cpu.cfs_quota_us"))
		period, hasPeriod := readNumber(root, path.Join("sys/fs/cgroup/cpu", dir, "cpu.cfs_period_us"))
		if b, err := fs.ReadFile(root, path.Join("sys/fs/cgroup", dir, "cpu.max")); err == nil {
			n, _ := fmt.Sscanf(string(b), "%d %d", &quota, &period) // "max 100000" has no quota
			hasQuota, hasPeriod = n == 2, n == 2
		}
		if hasQuota && hasPeriod && quota > 0 && period > 0 {
			milli = min(milli, quota*1000/period)
		}
	}
	return milli, milli < noLimit
}

// ancestors are the paths of a cgroup and of all above it, without a leading slash.
func ancestors(group string) []string {
	dirs := []string{"."}
	at := "."
	for part := range strings.SplitSeq(path.Clean("/" + group)[1:], "/") {
		if part != "" {
			at = path.Join(at, part)
			dirs = append(dirs, at)
		}
	}
	return dirs
}

// hugePages returns how many pages the machine has of each size in bytes.
func hugePages(root fs.FS) map[int64]int64 {
	pages := map[int64]int64{}
	dirs, _ := fs.Glob(root, "sys/kernel/mm/hugepages/hugepages-*kB") // the pattern is valid
	for _, dir := range dirs {
		kib, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimPrefix(path.Base(dir), "hugepages-"), "kB"), 10, 64)
		if n, ok := readNumber(root, path.Join(dir, "nr_hugepages")); ok && err == nil {
			pages[kib<<10] = n
		}
	}
	return pages
}

// readNumber reads a file with one number that is not negative.
func readNumber(root fs.FS, file string) (int64, bool) {
	b, err := fs.ReadFile(root, file)
	if err != nil {
		return 0, false
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
	return n, err == nil && n >= 0
}

// diskCapacity returns the size of the file system that dir is on, or will be.
func diskCapacity(dir string) (resource.Quantity, error) {
	for {
		_, err := os.Stat(dir)
		if err == nil || dir == filepath.Dir(dir) {
			break
		}
		dir = filepath.Dir(dir)
	}
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return resource.Quantity{}, fmt.Errorf("size of the file system of %s: %w", dir, err)
	}
	return *resource.NewQuantity(int64(st.Blocks)*int64(st.Bsize), resource.BinarySI), nil //nolint:unconvert // Bsize has another type on other systems
}
