package cgroup

import "context"

// tree writes the cgroups of one cgroup version.
type tree interface {
	// set creates the cgroup with its limits, or updates them.
	set(group string, l limits) error
	// weigh sets the weight of l alone: all else of it is set.
	weigh(group string, l limits) error
	// dirs returns the directories of the cgroup in all hierarchies that can have it,
	// at least one.
	dirs(group string) []string
	// hasMemoryQoS reports whether limits.qos has an effect.
	hasMemoryQoS() bool
	// rejectsLimitBelowUsage reports whether a limit on memory below the usage is an error,
	// unix.EBUSY, and not the end of processes.
	rejectsLimitBelowUsage() bool
	// memory returns the limit on the memory of a cgroup, 0 without one, and its usage.
	memory(group string) (limit, usage int64, err error)
	// fileCache returns how much of the usage is of files, which the kernel can reclaim; 0 if that is not known.
	fileCache(group string) int64
	// quota returns the CPU quota of a cgroup per a period in µs, 0 without one.
	quota(group string, period int64) (int64, error)
	// pageSizes returns the huge page sizes that can be limited.
	pageSizes() []string
	// release removes what is outside the cgroup's directories. Its processes have ended.
	release(ctx context.Context, group string) error
}

// exists reports whether the cgroup exists.
func exists(t tree, group string) bool {
	return isDir(t.dirs(group)[0])
}
