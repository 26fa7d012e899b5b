package node

import (
	"io/fs"
	"math"
	"path"
	goruntime "runtime"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/sublet-dev/agent/internal/hugepages"
)

// DetectCapacity returns what the machine has for all processes: cpu, memory, huge
// pages and process ids. root is the machine's root directory, os.DirFS("/"). Limits of
// the given cgroups and of those above them count as the machine's. Give the cgroup
// below which pods are: that of the container or slice which is the node. The cgroup of
// the agent itself is none if pods are elsewhere, as for a systemd service.
//
// What cannot be read is left out.
func DetectCapacity(root fs.FS, cgroups ...string) corev1.ResourceList {
	capacity := corev1.ResourceList{}
	cpu, memory, pids := int64(onlineCPUs(root))*1000, noLimit, noLimit
	if n := meminfo(root, "MemTotal:"); n > 0 {
		memory = n
	}
	for _, file := range []string{"proc/sys/kernel/pid_max", "proc/sys/kernel/threads-max"} {
		if n, ok := readNumber(root, file); ok {
			pids = min(pids, n)
		}
	}
	for _, dir := range withAncestors(cgroups) {
		cpu = min(cpu, cgroupCPU(root, dir))
		memory = min(memory, cgroupLimit(root, "memory", dir, "memory.limit_in_bytes", "memory.max"))
		pids = min(pids, cgroupLimit(root, "pids", dir, "pids.max", "pids.max"))
	}
	capacity[corev1.ResourceCPU] = *resource.NewMilliQuantity(cpu, resource.DecimalSI)
	if memory < noLimit {
		capacity[corev1.ResourceMemory] = *resource.NewQuantity(memory, resource.BinarySI)
	}
	if pids < noLimit {
		capacity[ResourcePIDs] = *resource.NewQuantity(pids, resource.DecimalSI)
	}
	for size, count := range hugePages(root) {
		capacity[hugepages.ResourceName(size)] = *resource.NewQuantity(size*count, resource.BinarySI)
	}
	return capacity
}

// onlineCPUs counts the processors in a list such as 0-3,8.
func onlineCPUs(root fs.FS) int {
	b, err := fs.ReadFile(root, "sys/devices/system/cpu/online")
	if err != nil {
		return goruntime.NumCPU()
	}
	n := 0
	for part := range strings.SplitSeq(strings.TrimSpace(string(b)), ",") {
		first, last, isRange := strings.Cut(part, "-")
		if !isRange {
			last = first
		}
		from, err := strconv.ParseUint(first, 10, 16)
		to, errLast := strconv.ParseUint(last, 10, 16)
		if err != nil || errLast != nil || to < from {
			return goruntime.NumCPU()
		}
		n += int(to-from) + 1
	}
	return n
}

// noLimit is above what any machine has: version 1 of cgroups writes "no limit" as
// a number of this size.
const noLimit int64 = 1 << 60

// cgroupLimit returns the limit of a cgroup in the hierarchy of a controller, or in that
// of version 2; noLimit if it has none.
func cgroupLimit(root fs.FS, controller, dir, v1, v2 string) int64 {
	limit := noLimit
	for _, file := range []string{path.Join("sys/fs/cgroup", controller, dir, v1), path.Join("sys/fs/cgroup", dir, v2)} {
		if n, ok := readNumber(root, file); ok {
			limit = min(limit, n)
		}
	}
	return limit
}

// cgroupCPU returns the CPU quota of a cgroup in thousandths of a CPU; noLimit if it has
// none.
func cgroupCPU(root fs.FS, dir string) int64 {
	quota, hasQuota := readNumber(root, path.Join("sys/fs/cgroup/cpu", dir, "cpu.cfs_quota_us"))
	period, hasPeriod := readNumber(root, path.Join("sys/fs/cgroup/cpu", dir, "cpu.cfs_period_us"))
	if b, err := fs.ReadFile(root, path.Join("sys/fs/cgroup", dir, "cpu.max")); err == nil {
		first, second, _ := strings.Cut(strings.TrimSpace(string(b)), " ") // "max 100000" has no quota
		quota, hasQuota = parseNumber(first)
		period, hasPeriod = parseNumber(second)
	}
	if !hasQuota || !hasPeriod || quota == 0 || period == 0 || quota > math.MaxInt64/1000 {
		return noLimit
	}
	return quota * 1000 / period
}

// withAncestors returns the paths of cgroups and of all above them, without a leading
// slash. The root is one of them: in a container it is the container's cgroup.
func withAncestors(cgroups []string) []string {
	dirs := []string{"."}
	for _, group := range cgroups {
		for dir := path.Clean("/" + group); dir != "/"; dir = path.Dir(dir) {
			dirs = append(dirs, dir[1:])
		}
	}
	return dirs
}

// hugePages returns how many pages the machine has of each size in bytes.
func hugePages(root fs.FS) map[int64]int64 {
	pages := map[int64]int64{}
	for _, size := range hugepages.Sizes(root) {
		if n, ok := readNumber(root, path.Join(hugepages.Dir(size), "nr_hugepages")); ok {
			pages[size] = n
		}
	}
	return pages
}

// meminfo returns a line of /proc/meminfo in bytes, or 0.
func meminfo(root fs.FS, key string) int64 {
	b, err := fs.ReadFile(root, "proc/meminfo")
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(b)) {
		if words := strings.Fields(line); len(words) > 1 && words[0] == key {
			if kib, ok := parseNumber(words[1]); ok && kib < 1<<50 {
				return kib << 10
			}
		}
	}
	return 0
}

// readNumber reads a file with one number that is not negative.
func readNumber(root fs.FS, file string) (int64, bool) {
	b, err := fs.ReadFile(root, file)
	if err != nil {
		return 0, false
	}
	return parseNumber(strings.TrimSpace(string(b)))
}

// parseNumber reads a number that is not negative.
func parseNumber(s string) (int64, bool) {
	n, err := strconv.ParseInt(s, 10, 64)
	return n, err == nil && n >= 0
}
