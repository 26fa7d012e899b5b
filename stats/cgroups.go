package stats

import (
	"io/fs"
	"time"

	"github.com/sublet-dev/agent/runtime"
)

// groups reads the usage files of cgroups. A cgroup is named by its path below the root
// of each hierarchy.
type groups struct {
	*reader
	uncached *reader // of files that only a Summary needs
	v2       bool
	// memory, cpuacct and pids are the directories of the v1 controllers. One hierarchy can
	// have several controllers.
	memory, cpuacct, pids string
}

// openGroups finds out the cgroup version of a mounted /sys/fs/cgroup.
func openGroups(fsys fs.FS) *groups {
	g := &groups{reader: newReader(fsys), uncached: newUncachedReader(fsys)}
	if _, err := fs.Stat(fsys, "cgroup.controllers"); err == nil {
		g.v2 = true
		return g
	}
	g.memory, g.pids = "memory", "pids"
	g.cpuacct = "cpuacct"
	if _, err := fs.Stat(fsys, g.cpuacct); err != nil {
		g.cpuacct = "cpu,cpuacct"
	}
	return g
}

// exists reports whether a cgroup exists.
func (g *groups) exists(group string) bool {
	_, err := fs.Stat(g.fsys, join(g.memory, group))
	return err == nil
}

// boundOf returns the memory usage of a cgroup with its limit as the capacity. The
// capacity is zero without a limit.
func (g *groups) boundOf(group string, now time.Time) (runtime.MemoryUsage, error) {
	m, err := g.memoryOf(group, now)
	if err != nil {
		return runtime.MemoryUsage{}, err
	}
	m.Capacity = g.memoryLimit(g.reader, group)
	return m, nil
}

// memoryLimit returns the limit of a cgroup, or zero without one.
func (g *groups) memoryLimit(r *reader, group string) uint64 {
	file := "memory.limit_in_bytes"
	if g.v2 {
		file = "memory.max"
	}
	n, err := r.number(join(g.memory, group, file))
	if err != nil || n >= unlimited {
		return 0
	}
	return n
}

// memoryOf returns the memory usage of a cgroup, without a capacity.
func (g *groups) memoryOf(group string, now time.Time) (runtime.MemoryUsage, error) {
	m := runtime.MemoryUsage{At: now}
	usage, stat := "memory.usage_in_bytes", "memory.stat"
	if g.v2 {
		usage = "memory.current"
	}
	var err error
	if m.Usage, err = g.number(join(g.memory, group, usage)); err != nil {
		return runtime.MemoryUsage{}, err
	}
	var inactive uint64
	err = g.table(join(g.memory, group, stat), func(key []byte, n uint64) {
		// On v1 the names with total_ include the cgroups below, as all names do on v2.
		switch string(key) {
		case "total_inactive_file":
			inactive = n
		case "total_cache", "file": // see isCache
			m.Cache, m.HasCache = n, true
		case "inactive_file":
			if g.v2 {
				inactive = n
			}
		case "total_rss", "anon":
			m.RSS = n
		case "total_pgfault":
			m.PageFaults = n
		case "total_pgmajfault":
			m.MajorFaults = n
		case "pgfault":
			if g.v2 {
				m.PageFaults = n
			}
		case "pgmajfault":
			if g.v2 {
				m.MajorFaults = n
			}
		}
	})
	if err != nil {
		return runtime.MemoryUsage{}, err
	}
	m.WorkingSet = m.Usage - min(inactive, m.Usage)
	return m, nil
}

// unlimited is the value from which on a limit means that there is none: cgroup v1 reports
// the largest number that is aligned to pages, and number returns the maximum for "max".
const unlimited = 1 << 62

// cpuOf returns the CPU time that a cgroup has consumed, without a rate.
func (g *groups) cpuOf(group string, now time.Time) (runtime.CPUUsage, error) {
	c := runtime.CPUUsage{At: now}
	if !g.v2 {
		var err error
		if c.UsageCoreNanoSeconds, err = g.number(join(g.cpuacct, group, "cpuacct.usage")); err != nil {
			return runtime.CPUUsage{}, err
		}
		return c, nil
	}
	err := g.table(join(group, "cpu.stat"), func(key []byte, n uint64) {
		if string(key) == "usage_usec" {
			c.UsageCoreNanoSeconds = n * 1000
		}
	})
	if err != nil {
		return runtime.CPUUsage{}, err
	}
	return c, nil
}

// pidsOf returns the number of tasks in a cgroup, without a limit.
func (g *groups) pidsOf(group string, now time.Time) (runtime.PidUsage, error) {
	used, err := g.number(join(g.pids, group, "pids.current"))
	if err != nil {
		return runtime.PidUsage{}, err
	}
	return runtime.PidUsage{At: now, Used: used}, nil
}

// boundPidsOf returns the number of tasks in a cgroup and its limit, which is zero without
// one.
func (g *groups) boundPidsOf(group string, now time.Time) (runtime.PidUsage, error) {
	p, err := g.pidsOf(group, now)
	if err != nil {
		return runtime.PidUsage{}, err
	}
	if n, err := g.number(join(g.pids, group, "pids.max")); err == nil && n < unlimited {
		p.Max = n
	}
	return p, nil
}
