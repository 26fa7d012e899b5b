//go:build linux

package e2e

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/stats"
)

// reportsUsage requires that the agent's statistics of a pod of one container are what the kernel counts, on either version of
// cgroups.
func (p *pod) reportsUsage(v *corev1.Pod) {
	p.t.Helper()
	// The pod sends something to have counters: to its gateway, which need not answer.
	_, _, err := p.sh("main", "nc -w 1 "+v.Status.PodIP[:strings.LastIndex(v.Status.PodIP, ".")+1]+"1 9 </dev/null; true")
	require.NoError(p.t, err)
	group := p.node.PodCgroup(p.t, v)
	var before, after uint64
	var s stats.PodStats
	p.eventually(func() error { // a runtime that is busy with all the other pods may not tell those of the container in time
		before = p.cpuTime(group)
		summary, err := p.agent.Stats(p.t.Context())
		after = p.cpuTime(group)
		if err != nil {
			return err
		}
		i := slices.IndexFunc(summary.Pods, func(s stats.PodStats) bool { return s.PodRef.UID == string(v.UID) })
		if i < 0 {
			return fmt.Errorf("no statistics of %s", p.name)
		}
		if s = summary.Pods[i]; len(s.Containers) != 1 || s.Containers[0].Memory == nil {
			return fmt.Errorf("no statistics of the container: %+v", s.Containers)
		}
		return nil
	})

	require.NotNil(p.t, s.CPU)
	require.GreaterOrEqual(p.t, *s.CPU.UsageCoreNanoSeconds, before)
	require.LessOrEqual(p.t, *s.CPU.UsageCoreNanoSeconds, after)
	require.NotNil(p.t, s.Memory)
	// The pod is idle, but for the kernel's own pages.
	used := p.counted(group, "memory", "memory.usage_in_bytes", "memory.current")
	require.InDelta(p.t, used, float64(*s.Memory.UsageBytes), 2*mib)
	require.LessOrEqual(p.t, *s.Memory.WorkingSetBytes, *s.Memory.UsageBytes)
	require.Positive(p.t, *s.Memory.WorkingSetBytes)
	require.NotNil(p.t, s.ProcessStats)
	require.Equal(p.t, p.counted(group, "pids", "pids.current", "pids.current"), *s.ProcessStats.ProcessCount)
	require.Positive(p.t, *s.Containers[0].Memory.WorkingSetBytes)
	require.LessOrEqual(p.t, *s.Containers[0].Memory.WorkingSetBytes, *s.Memory.UsageBytes)
	require.NotNil(p.t, s.Network)
	require.Equal(p.t, "eth0", s.Network.Name)
	require.Positive(p.t, *s.Network.TxBytes)
	require.LessOrEqual(p.t, *s.Network.TxBytes, p.transmitted())
}

// transmitted is the number of bytes that the kernel has counted on eth0 of the pod by now.
func (p *pod) transmitted() uint64 {
	p.t.Helper()
	counted, _, err := p.sh("main", "cat /sys/class/net/eth0/statistics/tx_bytes")
	require.NoError(p.t, err)
	n, err := strconv.ParseUint(strings.TrimSpace(counted), 10, 64)
	require.NoError(p.t, err)
	return n
}

// reportsNoNetwork requires that the agent's statistics of a pod on the network of the node do not have those of the node.
func (p *pod) reportsNoNetwork(v *corev1.Pod) {
	p.t.Helper()
	summary, err := p.agent.Stats(p.t.Context())
	require.NoError(p.t, err)
	require.NotNil(p.t, summary.Node.Network)
	i := slices.IndexFunc(summary.Pods, func(s stats.PodStats) bool { return s.PodRef.UID == string(v.UID) })
	require.GreaterOrEqual(p.t, i, 0)
	require.NotNil(p.t, summary.Pods[i].Memory)
	require.Nil(p.t, summary.Pods[i].Network)
}

// cpuTime is the time on the CPU in ns that a cgroup has had.
func (p *pod) cpuTime(group string) uint64 {
	p.t.Helper()
	if !unifiedCgroups() {
		return p.counted(group, "cpuacct", "cpuacct.usage", "")
	}
	_, rest, _ := strings.Cut(p.cgroupFile(group, "cpu", "", "cpu.stat"), "usage_usec ")
	first, _, _ := strings.Cut(rest, "\n")
	n, err := strconv.ParseUint(first, 10, 64)
	require.NoError(p.t, err)
	return n * 1000
}

// counted is the number in a file of a cgroup, of a controller of version 1 or of version 2.
func (p *pod) counted(group, controller, file1, file2 string) uint64 {
	p.t.Helper()
	n, err := strconv.ParseUint(p.cgroupFile(group, controller, file1, file2), 10, 64)
	require.NoError(p.t, err)
	return n
}
