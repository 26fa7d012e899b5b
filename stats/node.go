package stats

import (
	"errors"
	"fmt"
	"iter"
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/sublet-dev/agent/runtime"
)

// machineMemory returns the memory usage of the machine. The inactive part of the page
// cache does not count as working set, because the kernel can reclaim it at once.
func machineMemory(proc *reader, now time.Time) (runtime.MemoryUsage, error) {
	var total, free, inactive, anon uint64
	err := proc.table("meminfo", func(key []byte, n uint64) {
		switch string(key) {
		case "MemTotal":
			total = n << 10
		case "MemFree":
			free = n << 10
		case "Inactive(file)":
			inactive = n << 10
		case "AnonPages":
			anon = n << 10
		}
	})
	if err != nil {
		return runtime.MemoryUsage{}, err
	}
	if total == 0 {
		return runtime.MemoryUsage{}, errors.New("meminfo has no MemTotal")
	}
	m := runtime.MemoryUsage{At: now, Capacity: total, Usage: total - min(free, total), RSS: anon}
	m.WorkingSet = m.Usage - min(inactive, m.Usage)
	return m, nil
}

// addVMStat adds the page faults of the machine, if m is its memory: that of a cgroup has its own.
func addVMStat(proc *reader, m *runtime.MemoryUsage) error {
	if m.At.IsZero() || m.PageFaults > 0 || m.MajorFaults > 0 {
		return nil
	}
	return proc.table("vmstat", func(key []byte, n uint64) {
		switch string(key) {
		case "pgfault":
			m.PageFaults = n
		case "pgmajfault":
			m.MajorFaults = n
		}
	})
}

// nodeMemory returns the memory usage of the machine or, if one of the node's cgroup and those
// above it has a lower limit than the machine has memory, of the one with the lowest.
func (p *Provider) nodeMemory(g *groups, now time.Time) (runtime.MemoryUsage, error) {
	machine, err := machineMemory(p.proc, now)
	group, capacity := "", machine.Capacity
	for at := range p.nodeGroups() {
		if limit := g.memoryLimit(g.reader, at); limit > 0 && (capacity == 0 || limit < capacity) {
			group, capacity = at, limit
		}
	}
	if group == "" {
		return machine, err
	}
	return g.boundOf(group, now)
}

// nodeGroups returns the node's cgroup and those above it, up to the root; none without a NodeCgroup.
func (p *Provider) nodeGroups() iter.Seq[string] {
	return func(yield func(string) bool) {
		for at := p.cfg.NodeCgroup; at != ""; at = path.Dir(at) {
			if !yield(at) || at == "/" {
				return
			}
		}
	}
}

// maxStat limits what is read of /proc/stat, which has a line for each CPU, and in one line a number for each interrupt.
const maxStat = 4 << 20

// BootTime returns when the machine was booted, or the zero time if that is unknown.
func (p *Provider) BootTime() time.Time {
	var boot time.Time
	_ = p.procUncached.head("stat", maxStat, func(data []byte) error {
		parseTable(data, func(key []byte, n uint64) {
			if string(key) == "btime" && n < 1<<40 {
				boot = time.Unix(int64(n), 0)
			}
		})
		return nil
	})
	return boot
}

// machinePids returns the number of tasks on the machine and their maximum: the smaller
// one of pid_max and threads-max.
func machinePids(proc *reader, now time.Time) (runtime.PidUsage, error) {
	p := runtime.PidUsage{At: now}
	ids, err := proc.number("sys/kernel/pid_max")
	if err != nil {
		return runtime.PidUsage{}, err
	}
	p.Max = ids
	if threads, err := proc.number("sys/kernel/threads-max"); err == nil {
		p.Max = min(p.Max, threads)
	}
	err = proc.read("loadavg", func(data []byte) error {
		// 0.00 0.01 0.05 <running tasks>/<all tasks> <last id>
		fields := strings.Fields(string(data))
		if len(fields) < 4 {
			return fmt.Errorf("%q has too few fields", data)
		}
		_, all, _ := strings.Cut(fields[3], "/")
		p.Used, err = strconv.ParseUint(all, 10, 64)
		return err
	})
	if err != nil {
		return runtime.PidUsage{}, err
	}
	return p, nil
}
