package stats_test

import (
	"testing"
	"testing/fstest"
	"time"

	"github.com/sublet-dev/agent/stats"
)

// Whatever kernel files contain, reading them ends, and the values are consistent.
func FuzzUsage(f *testing.F) {
	f.Add("MemTotal: 10 kB\nMemFree: 20 kB\n", "some avg10=1.0 total=3\n", "0 0 0 1/2 3\n", "inactive_file 5\n", "7")
	f.Add("MemTotal:", "full", "", "total_inactive_file 99999999999999999999", "max")
	f.Add("MemTotal: 18446744073709551615 kB", "some avg10=NaN", "a b c d", "\n\n x", "-1")
	f.Fuzz(func(t *testing.T, meminfo, psi, loadavg, stat, number string) {
		file := func(s string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(s)} }
		for _, v2 := range []bool{false, true} {
			groups := fstest.MapFS{
				"memory/g/memory.usage_in_bytes": file(number), "memory/g/memory.limit_in_bytes": file(number), "memory/g/memory.stat": file(stat),
				"pids/g/pids.current": file(number), "pids/g/pids.max": file(number), "cpuacct/g/cpuacct.usage": file(number),
				"g/memory.current": file(number), "g/memory.max": file(number), "g/memory.stat": file(stat), "g/pids.current": file(number),
				"g/cpu.stat": file(stat), "g/memory.pressure": file(psi),
			}
			if v2 {
				groups["cgroup.controllers"] = file("cpu memory pids")
			}
			for _, bound := range []string{"", "/g"} {
				p, err := stats.New(stats.Config{
					Proc: fstest.MapFS{
						"meminfo": file(meminfo), "pressure/memory": file(psi), "loadavg": file(loadavg), "sys/kernel/pid_max": file(number),
					},
					Cgroups: groups, NodeCgroup: bound, Pods: func() []stats.Pod { return []stats.Pod{{Pod: pod("a"), Cgroup: "/g"}} },
				})
				if err != nil {
					t.Fatal(err)
				}
				u, err := p.Usage(t.Context(), time.Time{})
				if err != nil {
					continue
				}
				if u.Memory.WorkingSet > u.Memory.Usage || u.Memory.Available() > u.Memory.Capacity {
					t.Fatalf("%+v", u.Memory)
				}
			}
		}
	})
}
