package stats

import (
	"testing"
	"testing/fstest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The cgroups of the agent and of all pods are system containers, without file systems.
func TestProvider_SystemContainers(t *testing.T) {
	p := fullProvider(t)
	s, err := p.Summary(t.Context(), "edge-1", podsOf(p))
	require.NoError(t, err)
	require.Len(t, s.Node.SystemContainers, 2)
	for i, want := range []struct {
		name    string
		used    uint64
		started bool
	}{{"kubelet", 300, true}, {"pods", 200, false}} {
		c := s.Node.SystemContainers[i]
		assert.Equal(t, want.name, c.Name)
		assert.Equal(t, want.started, !c.StartTime.IsZero())
		assert.Equal(t, want.used*1000, *c.CPU.UsageCoreNanoSeconds)
		assert.Equal(t, []uint64{want.used, want.used - 10, 1010 - want.used, 50, 8, 2}, []uint64{
			*c.Memory.UsageBytes, *c.Memory.WorkingSetBytes, *c.Memory.AvailableBytes, *c.Memory.RSSBytes, *c.Memory.PageFaults, *c.Memory.MajorPageFaults,
		})
		assert.Equal(t, uint64(15), *c.Swap.SwapAvailableBytes)
		assert.Equal(t, uint64(7), c.IO.PSI.Some.Total)
		assert.Equal(t, uint64(7), c.CPU.PSI.Some.Total)
		assert.Equal(t, uint64(7), c.Memory.PSI.Some.Total)
		assert.Nil(t, c.Rootfs)
		assert.Nil(t, c.Logs)
	}
}

// The cgroup of the agent is reported if it is its own and its usage is known.
func TestProvider_AgentCgroup(t *testing.T) {
	file := func(s string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(s)} }
	v2 := fstest.MapFS{"cgroup.controllers": file("cpu"), "agent/cpu.stat": file("usage_usec 5\n"), "agent/memory.current": file("5\n"), "agent/memory.stat": file("anon 1\n")}
	v1 := fstest.MapFS{"cpuacct/agent/cpuacct.usage": file("5\n"), "memory/agent/memory.usage_in_bytes": file("5\n"), "memory/agent/memory.stat": file("total_rss 1\n")}
	for name, tc := range map[string]struct {
		cgroups  fstest.MapFS
		of, pods string
		reported bool
	}{
		"v2":                         {v2, "0::/agent\n", "/kubepods", true},
		"v2, of a hybrid":            {v2, "1:name=systemd:/x\n0::/agent\n", "", true},
		"the root":                   {v2, "0::/\n", "", false},
		"outside of the namespace":   {v2, "0::/../agent\n", "", false},
		"above the namespace":        {v2, "0::/..\n", "", false},
		"not there":                  {v2, "0::/other\n", "", false},
		"removed":                    {v2, "0::/agent (deleted)\n", "", false},
		"above that of all pods":     {v2, "0::/agent\n", "/agent/kubepods", false},
		"that of all pods":           {v2, "0::/agent\n", "/agent", false},
		"beside that of all pods":    {v2, "0::/agent\n", "/agent-pods", true},
		"v1":                         {v1, "5:memory:/agent\n4:cpu,cpuacct:/agent\n1:name=systemd:/x\n0::/y\n", "/kubepods", true},
		"v1, one for memory only":    {v1, "5:memory:/agent\n4:cpu,cpuacct:/\n", "", false},
		"v1, without memory":         {v1, "4:cpu,cpuacct:/agent\n", "", false},
		"no file":                    {v1, "", "", false},
		"a file of no known content": {v2, "agent\n", "", false},
	} {
		proc := testProc()
		if tc.of != "" {
			proc["self/cgroup"] = file(tc.of)
		}
		p, err := New(Config{Proc: proc, Cgroups: tc.cgroups, PodsCgroup: func() string { return tc.pods }})
		require.NoError(t, err)
		for range 2 {
			s, err := p.Summary(t.Context(), "n", nil)
			require.NoError(t, err)
			assert.Equal(t, tc.reported, len(s.Node.SystemContainers) > 0 && s.Node.SystemContainers[0].Name == SystemContainerKubelet, name)
		}
		_, err = p.Usage(t.Context(), time.Time{})
		require.NoError(t, err)
		assert.Equal(t, tc.reported || tc.pods == "/agent", !p.rates["/agent"].At.IsZero(), name+": the sample is kept for the next rate")
	}
}
