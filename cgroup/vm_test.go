//go:build linux

package cgroup_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/cgroup"
)

const cgroups = "/sys/fs/cgroup"

// unitProperty returns a property of a unit as systemd shows it.
func unitProperty(t *testing.T, unit, name string) string {
	t.Helper()
	out, err := exec.Command("systemctl", "show", "--value", "--property", name, unit).CombinedOutput()
	require.NoError(t, err, string(out))
	return strings.TrimSpace(string(out))
}

// On a machine of systemd and cgroup v2 a pod's slice is a unit with the limits of the
// kernel's files, keeps them when systemd reloads, and leaves neither unit nor directory
// nor process behind.
func TestVM_SystemdSlices(t *testing.T) {
	comm, err := os.ReadFile("/proc/1/comm")
	require.NoError(t, err)
	if _, err := os.Stat(cgroups + "/cgroup.controllers"); err != nil || string(comm) != "systemd\n" || os.Geteuid() != 0 {
		t.Skip("needs root, systemd and cgroup v2: .ci/run vm runs it in a virtual machine")
	}
	const parent, unit = "/subletcgrouptest.slice", "subletcgrouptest-kubepods-podu1.slice"
	const dir = cgroups + parent + "/subletcgrouptest-kubepods.slice/" + unit
	t.Cleanup(func() { _ = exec.Command("systemctl", "stop", parent[1:]).Run() })
	m, err := cgroup.New(cgroup.Config{Parent: parent, Driver: cgroup.Systemd, PodPidsLimit: 99, Owner: func() string { return "me" }})
	require.NoError(t, err)
	limits := func(quota, weight string) {
		t.Helper()
		assert.Equal(t, quota+" 100000", read(t, dir, "cpu.max"))
		assert.Equal(t, weight, read(t, dir, "cpu.weight"))
		assert.Equal(t, "67108864", read(t, dir, "memory.max"))
		assert.Equal(t, "99", read(t, dir, "pids.max"))
		for name, want := range map[string]string{"ActiveState": "active", "MemoryMax": "67108864", "CPUWeight": weight, "TasksMax": "99"} {
			assert.Equal(t, want, unitProperty(t, unit, name), name)
		}
	}
	name, err := m.Ensure(t.Context(), guaranteed("u1"))
	require.NoError(t, err)
	assert.Equal(t, unit, name)
	limits("50000", "59")
	assert.Empty(t, m.Unenforced())

	// As a resize does, and then as the installation of any package with a service does.
	raised := figures{"cpu": "800m", "memory": "64Mi"}
	_, err = m.Ensure(t.Context(), podOf("u1", raised, raised))
	require.NoError(t, err)
	limits("80000", "84")
	require.NoError(t, exec.Command("systemctl", "daemon-reload").Run())
	limits("80000", "84")

	// A process in a scope of its own, as runc makes one for each container, which ignores SIGTERM.
	scope := exec.Command("systemd-run", "--scope", "--quiet", "--unit=subletcgrouptest-c", "--slice="+unit, "sh", "-c", "trap '' TERM; sleep 1000")
	require.NoError(t, scope.Start())
	ended := make(chan error, 1)
	go func() { ended <- scope.Wait() }()
	require.Eventually(t, func() bool {
		procs, err := os.ReadFile(dir + "/subletcgrouptest-c.scope/cgroup.procs")
		return err == nil && len(procs) > 0
	}, time.Minute, 10*time.Millisecond)
	began := time.Now()
	require.NoError(t, m.Remove(t.Context(), "u1"))
	t.Logf("measured: a slice with a process was removed in %v", time.Since(began).Round(time.Millisecond))
	require.Error(t, <-ended, "killed")
	assert.NoDirExists(t, dir)
	assert.Equal(t, "inactive", unitProperty(t, unit, "ActiveState"))
	files, err := filepath.Glob("/run/systemd/*/*podu1*")
	require.NoError(t, err)
	assert.Empty(t, files)
	require.NoError(t, m.Remove(t.Context(), "u1"), "a second time")

	// Another process of the agent finds the slices, and what was made without systemd is its own now.
	require.NoError(t, os.MkdirAll(dir, 0o755))
	_, err = m.Ensure(t.Context(), guaranteed("u1"))
	require.NoError(t, err)
	limits("50000", "59")
	second, err := cgroup.New(cgroup.Config{Parent: parent, Driver: cgroup.Systemd, Owner: func() string { return "me" }})
	require.NoError(t, err)
	uids, err := second.PodUIDs()
	require.NoError(t, err)
	assert.Equal(t, []types.UID{"u1"}, uids)
	require.NoError(t, second.Remove(t.Context(), "u1"))
	assert.Equal(t, "inactive", unitProperty(t, unit, "ActiveState"))
}
