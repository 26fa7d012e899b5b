package stats

import (
	"io/fs"
	"time"

	"github.com/sublet-dev/agent/runtime"
)

// groups reads the figures of cgroups.
type groups struct {
	*reader
	v2 bool
	// v1: where controllers are; they may be mounted together.
	memory, cpuacct, pids string
}

func openGroups(fsys fs.FS) *groups {
	g := &groups{reader: newReader(fsys)}
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

// boundOf reads a group's memory with its limit as the capacity, which is zero
// where it has none.
func (g *groups) boundOf(group string, now time.Time) (runtime.MemoryUsage, error) {
	m, err := g.memoryOf(group, now)
	if err != nil {
		return runtime.MemoryUsage{}, err
	}
	limit := "memory.limit_in_bytes"
	if g.v2 {
		limit = "memory.max"
	}
	if most, err := g.number(join(g.memory, group, limit)); err == nil && most < unlimited {
		m.Capacity = most
	}
	return m, nil
}

// memoryOf reads a group's memory.
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
		// The names with total_ are v1's for the group with those below it.
		switch string(key) {
		case "total_inactive_file":
			inactive = n
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

// unlimited is where v1's way to say "no limit" begins: the largest page
// aligned number.
const unlimited = 1 << 62

// cpuOf reads a group's processor time so far.
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

// pidsOf reads how many tasks a group has.
func (g *groups) pidsOf(group string, now time.Time) (runtime.PidUsage, error) {
	used, err := g.number(join(g.pids, group, "pids.current"))
	if err != nil {
		return runtime.PidUsage{}, err
	}
	return runtime.PidUsage{At: now, Used: used}, nil
}

// boundPidsOf reads how many tasks a group has and may have.
func (g *groups) boundPidsOf(group string, now time.Time) (runtime.PidUsage, error) {
	p, err := g.pidsOf(group, now)
	if err != nil {
		return runtime.PidUsage{}, err
	}
	if most, err := g.number(join(g.pids, group, "pids.max")); err == nil && most < unlimited {
		p.Max = most
	}
	return p, nil
}
