package cgroup_test

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/cgroup"
	"github.com/sublet-dev/agent/internal/systest"
)

// BenchmarkManager_Ensure creates the cgroup of a pod on the cgroups of the kernel, and removes it. CPU-µs/op is the CPU time of this process
// for both; the time that another waits for a lock of the kernel is not in it.
func BenchmarkManager_Ensure(b *testing.B) {
	const parent = "/cgroupbench"
	m, err := cgroup.New(cgroup.Config{Parent: parent})
	require.NoError(b, err)
	if os.Geteuid() != 0 || len(m.Unenforced()) > 0 {
		b.Skip("needs root and cgroups of the kernel: ", m.Unenforced())
	}
	b.Cleanup(func() {
		for _, below := range []string{"/kubepods/burstable", "/kubepods/besteffort", "/kubepods", ""} {
			dirs, err := filepath.Glob("/sys/fs/cgroup/*" + parent + below)
			require.NoError(b, err)
			for _, dir := range append(dirs, "/sys/fs/cgroup"+parent+below) {
				_ = os.Remove(dir) // one of them is of the other version
			}
		}
	})
	_, err = m.Ensure(b.Context(), burstable("first")) // with the cgroups above
	require.NoError(b, err)
	require.NoError(b, m.Remove(b.Context(), "first"))
	n, before := 0, systest.CPUTime(b)
	for b.Loop() {
		n++
		uid := types.UID(strconv.Itoa(n))
		_, err := m.Ensure(b.Context(), burstable(uid))
		require.NoError(b, err)
		require.NoError(b, m.Remove(b.Context(), uid))
	}
	b.ReportMetric(float64((systest.CPUTime(b)-before).Microseconds())/float64(n), "CPU-µs/op")
}
