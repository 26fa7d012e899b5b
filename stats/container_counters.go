package stats

import (
	"bytes"
	"cmp"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/sublet-dev/agent/runtime"
)

// maxBlockDevices bounds the block devices that are reported of one cgroup.
const maxBlockDevices = 64

// deviceNames returns the names of block devices by their numbers, such as /dev/sda by 8:0.
func (p *Provider) deviceNames() map[string]string {
	names := map[string]string{}
	// Without the file, devices have their numbers.
	_ = p.procUncached.read("partitions", func(data []byte) error {
		for line := range bytes.Lines(data) {
			if f := strings.Fields(string(line)); len(f) == 4 && f[0] != "major" {
				names[f[0]+":"+f[1]] = "/dev/" + f[3]
			}
		}
		return nil
	})
	return names
}

// blockIOOf returns what the tasks of a cgroup have read from disks and written to them. It is unknown on cgroup v1.
func (g *groups) blockIOOf(group string, names map[string]string, now time.Time) (runtime.BlockIOUsage, error) {
	u := runtime.BlockIOUsage{}
	if !g.v2 {
		return u, nil
	}
	err := g.uncached.read(join(group, "io.stat"), func(data []byte) error {
		u.At = now
		for line := range bytes.Lines(data) {
			f := strings.Fields(string(line))
			if len(f) < 2 || len(u.Devices) == maxBlockDevices {
				continue
			}
			var d runtime.BlockDeviceUsage
			number := f[0]
			into := map[string]*uint64{"rbytes": &d.BytesRead, "wbytes": &d.BytesWritten, "rios": &d.Reads, "wios": &d.Writes}
			for _, entry := range f[1:] {
				key, value, ok := strings.Cut(entry, "=")
				if !ok { // some kernels leave out the end of the line of a device without counters
					number = entry
				}
				if n, ok := digits([]byte(value)); ok && into[key] != nil {
					*into[key] = n
				}
			}
			d.Device = cmp.Or(names[number], number)
			if !slices.ContainsFunc(u.Devices, func(other runtime.BlockDeviceUsage) bool { return other.Device == d.Device }) {
				u.Devices = append(u.Devices, d)
			}
		}
		return nil
	})
	return u, err
}

// throttlingOf returns the CPU quota of a cgroup, and how it has kept tasks from running. It is unknown on cgroup v1. A limit in the
// spec of a pod says less: it need not be enforced, and that of the pod applies to a container without its own.
func (g *groups) throttlingOf(group string, now time.Time) (t runtime.ThrottlingUsage, err error) {
	if !g.v2 {
		return t, nil
	}
	err = g.uncached.read(join(group, "cpu.max"), func(data []byte) error {
		quota, period := cutSpace(data)
		t.Quota, t.Period = microseconds(quota), microseconds(bytes.TrimSpace(period)) // no number, "max", is no quota
		return nil
	})
	if err != nil || t.Quota == 0 {
		return runtime.ThrottlingUsage{At: now}, err
	}
	t.At = now
	err = g.uncached.table(join(group, "cpu.stat"), func(key []byte, n uint64) {
		switch string(key) {
		case "nr_periods":
			t.Periods = n
		case "nr_throttled":
			t.ThrottledPeriods = n
		case "throttled_usec":
			t.ThrottledNanoSeconds = n * 1000
		}
	})
	return t, err
}

// microseconds returns the duration that a number stands for, 0 if it is none.
func microseconds(number []byte) time.Duration {
	n, _ := digits(number)
	return time.Duration(min(n, math.MaxInt64/1000)) * time.Microsecond //nolint:gosec // it is small enough
}

// addContainerCounters measures what no runtime reports of a container, in its cgroup: what is not known stays so.
func (g *groups) addContainerCounters(c *runtime.ContainerUsage, group string, devices map[string]string, now time.Time) {
	if io, err := g.blockIOOf(group, devices, now); err == nil {
		c.BlockIO = io
	}
	if t, err := g.throttlingOf(group, now); err == nil {
		c.Throttling = t
	}
	if !c.Memory.At.IsZero() && !c.Memory.HasCache {
		// It stays unknown if it cannot be read.
		_ = g.uncached.table(join(g.memory, group, "memory.stat"), func(key []byte, n uint64) {
			if isCache(key) {
				c.Memory.Cache, c.Memory.HasCache = n, true
			}
		})
	}
}

// isCache reports whether a line of memory.stat has the size of the page cache. On v1 it includes the cgroups below, as on v2.
func isCache(key []byte) bool { return string(key) == "total_cache" || string(key) == "file" }
