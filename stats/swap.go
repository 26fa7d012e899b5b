package stats

import (
	"errors"
	"time"

	"github.com/sublet-dev/agent/runtime"
)

// machineSwap returns the usage of swap space of the machine.
func machineSwap(proc *reader, now time.Time) (runtime.SwapUsage, error) {
	var total, free uint64
	known := false
	err := proc.table("meminfo", func(key []byte, n uint64) {
		switch string(key) {
		case "SwapTotal":
			total, known = n<<10, true
		case "SwapFree":
			free = n << 10
		}
	})
	if err != nil {
		return runtime.SwapUsage{}, err
	}
	if !known {
		return runtime.SwapUsage{}, errors.New("meminfo has no SwapTotal")
	}
	return runtime.SwapUsage{At: now, Usage: total - min(free, total), Limit: total, HasLimit: true}, nil
}

// nodeSwap returns the usage of swap space of the machine or, if one of the node's cgroup and
// those above it has a lower limit, of the one with the lowest. On cgroup v1 only the machine
// has a limit on swap alone.
func (p *Provider) nodeSwap(now time.Time) (runtime.SwapUsage, error) {
	lowest, err := machineSwap(p.proc, now)
	g := p.groups()
	if !g.v2 {
		return lowest, err
	}
	for at := range p.nodeGroups() {
		if s, groupErr := g.swapOf(at, g.reader, now); groupErr == nil && s.HasLimit && (!lowest.HasLimit || s.Limit < lowest.Limit) {
			lowest, err = s, nil
		}
	}
	return lowest, err
}

// swapOf returns the usage of swap space of a cgroup, with its limit. It is unknown if the
// kernel does not account for swap. On v1, stat reads memory.stat.
func (g *groups) swapOf(group string, stat *reader, now time.Time) (runtime.SwapUsage, error) {
	s := runtime.SwapUsage{At: now}
	limit := "memory.memsw.limit_in_bytes"
	var err error
	if g.v2 {
		limit = "memory.swap.max"
		s.Usage, err = g.uncached.number(join(group, "memory.swap.current"))
	} else {
		s.Usage, err = swapV1(stat, join(g.memory, group, "memory.stat"))
	}
	if err != nil {
		return runtime.SwapUsage{}, err
	}
	if n, err := g.uncached.number(join(g.memory, group, limit)); err == nil && n < unlimited {
		s.Limit, s.HasLimit = n, true
	}
	return s, nil
}

// swapV1 returns the swap space that a cgroup of v1 and those below it use.
func swapV1(stat *reader, name string) (swap uint64, err error) {
	known := false
	err = stat.table(name, func(key []byte, n uint64) {
		if string(key) == "total_swap" {
			swap, known = n, true
		}
	})
	if err == nil && !known {
		err = errors.New("memory.stat has no total_swap")
	}
	return swap, err
}
