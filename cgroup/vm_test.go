//go:build linux

package cgroup_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
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

func requireVM(t *testing.T) {
	t.Helper()
	comm, err := os.ReadFile("/proc/1/comm")
	require.NoError(t, err)
	if _, err := os.Stat(cgroups + "/cgroup.controllers"); err != nil || string(comm) != "systemd\n" || os.Geteuid() != 0 {
		t.Skip("needs root, systemd and cgroup v2: .ci/run vm runs it in a virtual machine")
	}
}

// On a machine of systemd and cgroup v2 a pod's slice is a unit with the limits of the
// kernel's files, keeps them when systemd reloads, and leaves neither unit nor directory
// nor process behind.
func TestVM_SystemdSlices(t *testing.T) {
	requireVM(t)
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
	group, err := m.Ensure(t.Context(), guaranteed("u1"))
	require.NoError(t, err)
	assert.Equal(t, dir, cgroups+group)
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

// asUser is set in the process that TestVM_DelegatedCgroup runs as an ordinary user.
const asUser = "SUBLET_DELEGATED_CGROUP"

// An ordinary user limits pods in a cgroup that systemd has delegated to it, and removes them
// with their processes; limits are those of the kernel. The cgroup is that of a service, or
// one in a slice of the user's own manager.
func TestVM_DelegatedCgroup(t *testing.T) {
	if os.Getenv(asUser) != "" {
		testDelegatedCgroup(t)
		return
	}
	requireVM(t)
	dir := t.TempDir()                             // only root may enter the test's own directory
	require.NoError(t, os.Chmod(dir, 0o755))       //nolint:gosec // it holds a program for others
	require.NoError(t, os.Chmod(dir+"/..", 0o755)) //nolint:gosec // as above
	data, err := os.ReadFile("/proc/self/exe")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(dir+"/test", data, 0o755)) //nolint:gosec // as above
	const user, manager, runtimeDir = 65534, "subletcgrouptest-manager", "/run/subletcgrouptest"
	asService := []string{"--quiet", "--collect", "-p", "Delegate=yes", "--unit=subletcgrouptest-user", "--setenv=" + asUser + "=1"}
	test := []string{dir + "/test", "-test.v", "-test.run=^TestVM_DelegatedCgroup$"}

	t.Run("of a service", func(t *testing.T) {
		out, err := exec.Command("systemd-run", slices.Concat(asService, []string{"--pipe", "--wait", "--uid=65534", "--gid=65534"}, test)...).CombinedOutput()
		require.NoError(t, err, string(out))
		require.Contains(t, string(out), "--- PASS: TestVM_DelegatedCgroup")
		require.Contains(t, string(out), "below /system.slice/subletcgrouptest-user.service\n")
		assert.NoDirExists(t, cgroups+"/system.slice/subletcgrouptest-user.service")
	})
	t.Run("of a user's manager", func(t *testing.T) {
		out, err := exec.Command("systemd-run", "--quiet", "--collect", "--service-type=notify", "--uid=65534", "--gid=65534", "--unit="+manager,
			"-p", "Delegate=yes", "-p", "RuntimeDirectory=subletcgrouptest", "--setenv=XDG_RUNTIME_DIR="+runtimeDir, "/lib/systemd/systemd", "--user").CombinedOutput()
		require.NoError(t, err, string(out))
		defer func() { assert.NoError(t, exec.Command("systemctl", "stop", manager).Run()) }()
		// Without a message bus, systemd-run waits for a service of this type only, and does not have its output.
		cmd := exec.Command("systemd-run", slices.Concat([]string{"--user", "--slice=pods.slice", "--service-type=oneshot", "-p", "StandardOutput=file:" + runtimeDir + "/out"}, asService, test)...)
		cmd.Env = append(os.Environ(), "XDG_RUNTIME_DIR="+runtimeDir)
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: user, Gid: user}}
		out, err = cmd.CombinedOutput()
		result, _ := os.ReadFile(runtimeDir + "/out")
		require.NoError(t, err, "%s\n%s", out, result)
		require.Contains(t, string(result), "--- PASS: TestVM_DelegatedCgroup")
		require.Contains(t, string(result), "below /system.slice/"+manager+".service/pods.slice/subletcgrouptest-user.service\n")
	})
}

func testDelegatedCgroup(t *testing.T) {
	require.NotZero(t, os.Geteuid())
	own, err := os.ReadFile("/proc/self/cgroup")
	require.NoError(t, err)
	parent := strings.TrimSpace(strings.TrimPrefix(string(own), "0::"))
	t.Logf("below %s", parent)
	// A cgroup that enforces limits of others has no processes of its own.
	require.NoError(t, os.Mkdir(cgroups+parent+"/agent", 0o755)) //nolint:gosec // as systemd makes it
	require.NoError(t, os.WriteFile(cgroups+parent+"/agent/cgroup.procs", []byte("0"), 0o600))
	cfg := cgroup.Config{Parent: parent, PodPidsLimit: 5, Owner: func() string { return "me" }}
	m, err := cgroup.New(cfg)
	require.NoError(t, err)
	name, err := m.Ensure(t.Context(), guaranteed("u1"))
	require.NoError(t, err)
	require.Equal(t, parent+"/kubepods/podu1", name)
	assert.Empty(t, m.Unenforced())
	pod, err := os.Open(cgroups + name)
	require.NoError(t, err)
	defer func() { _ = pod.Close() }()
	inPod := func(script string) *exec.Cmd {
		cmd := exec.CommandContext(t.Context(), "sh", "-c", script)
		cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(pod.Fd())}
		return cmd
	}
	out, err := inPod("dd if=/dev/zero of=/dev/null bs=100M count=1").CombinedOutput()
	require.Error(t, err, "64 MiB hold no 100: %s", out)
	assert.NotContains(t, read(t, pod.Name(), "memory.events"), "oom_kill 0", "%s", out)
	out, err = inPod("for i in 1 2 3 4 5 6; do sleep 1000 >/dev/null 2>&1 & done").CombinedOutput()
	require.Error(t, err, "five processes at most")
	assert.Contains(t, string(out), "Cannot fork")

	next, err := cgroup.New(cfg)
	require.NoError(t, err)
	uids, err := next.PodUIDs()
	require.NoError(t, err)
	assert.Equal(t, []types.UID{"u1"}, uids, "what it made is recognized")
	assert.NotEmpty(t, read(t, pod.Name(), "cgroup.procs"))
	require.NoError(t, next.Remove(t.Context(), "u1"))
	assert.NoDirExists(t, pod.Name())
}
