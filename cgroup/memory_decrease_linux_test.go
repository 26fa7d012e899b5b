package cgroup_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/sublet-dev/agent/cgroup"
	"github.com/sublet-dev/agent/podspec"
)

// sized is a Guaranteed pod.
func sized(cpu, memory string) *corev1.Pod {
	both := figures{"cpu": cpu, "memory": memory}
	return podOf("u1", both, both)
}

// writer writes files of a made-up cgroup.
func writer(t *testing.T, dir string) func(file, text string) {
	return func(file, text string) {
		t.Helper()
		require.NoError(t, os.WriteFile(filepath.Join(dir, file), []byte(text+"\n"), 0o600))
	}
}

// CR-1: memory in use is not taken away on v2, where the kernel would kill for it: the limit stays
// until there is less, and everything else is set.
func TestEnsure_KeepsMemoryInUse(t *testing.T) {
	const dir = "/kubepods/podu1"
	root := madeUpV2(t, dir, "/kubepods/burstable", "/kubepods/besteffort")
	write := writer(t, filepath.Join(root, dir))
	cfg := cgroup.Config{Root: root, Parent: "/"}
	m, err := cgroup.New(cfg)
	require.NoError(t, err)
	ensure := func(m *cgroup.Manager, pod *corev1.Pod, memory, problem string) {
		t.Helper()
		parent, err := m.Ensure(t.Context(), pod)
		if problem == "" {
			require.NoError(t, err)
		} else {
			require.EqualError(t, err, "set up cgroup /kubepods/podu1: "+problem)
		}
		require.Equal(t, dir, parent)
		require.Equal(t, memory, read(t, root, dir, "memory.max"))
	}
	write("memory.current", "1000")
	ensure(m, sized("500m", "64Mi"), "67108864", "")
	write("memory.max", "67108864")
	write("memory.current", "33554432")
	const inUse = "cannot set memory limit (33554432) below current usage; it is tried again"
	for range 2 {
		ensure(m, sized("200m", "32Mi"), "67108864", inUse)
		assert.Equal(t, "20000 100000", read(t, root, dir, "cpu.max"))
	}
	next, err := cgroup.New(cfg)
	require.NoError(t, err)
	ensure(next, sized("200m", "32Mi"), "67108864", inUse)
	ensure(next, sized("200m", "128Mi"), "134217728", "")
	write("memory.max", "134217728")
	write("memory.current", "33554431")
	ensure(m, sized("200m", "32Mi"), "33554432", "")
	write("memory.max", "33554432")
	write("memory.current", "33554432")
	ensure(m, sized("200m", "32Mi"), "33554432", "")
	ensure(next, sized("300m", "32Mi"), "33554432", "")

	write("memory.max", "max")
	ensure(next, sized("200m", "16Mi"), "max", "cannot set memory limit (16777216) below current usage; it is tried again")
	require.NoError(t, os.Remove(filepath.Join(root, dir, "memory.current")))
	ensure(next, sized("200m", "16Mi"), "16777216", "")
}

// CR-1: a pod whose limit stays is not throttled below what it uses either: all it does would be slow at once.
func TestEnsure_ThrottlesNoMemoryInUse(t *testing.T) {
	const dir = "/kubepods/burstable/podu1"
	root := madeUpV2(t, dir, "/kubepods/besteffort")
	write := writer(t, filepath.Join(root, dir))
	m, err := cgroup.New(cgroup.Config{Root: root, MemoryQoS: podspec.MemoryQoS{ThrottlingFactor: 0.5}})
	require.NoError(t, err)
	ensure := func(limit string) error {
		pod := podOf("u1", nil, nil)
		pod.Spec.Resources = &corev1.ResourceRequirements{
			Requests: corev1.ResourceList{"memory": resource.MustParse("16Mi")}, Limits: corev1.ResourceList{"memory": resource.MustParse(limit)},
		}
		_, err := m.Ensure(t.Context(), pod)
		return err
	}
	require.NoError(t, ensure("64Mi"))
	require.Equal(t, "41943040", read(t, root, dir, "memory.high"))
	write("memory.current", "40000000")
	for range 2 {
		require.ErrorContains(t, ensure("32Mi"), "memory limit (33554432) below current usage")
		require.Equal(t, []string{"67108864", "41943040"}, []string{read(t, root, dir, "memory.max"), read(t, root, dir, "memory.high")})
	}
	write("memory.current", "1000")
	require.NoError(t, ensure("32Mi"))
	require.Equal(t, []string{"33554432", "25165824"}, []string{read(t, root, dir, "memory.max"), read(t, root, dir, "memory.high")})
}

// allocate starts a process with 30 MB in the cgroup of a directory.
func allocate(t *testing.T, dir string) (end func()) {
	t.Helper()
	cmd := exec.Command("sh", "-c", "echo $$ > "+dir+"/cgroup.procs && x=$(head -c 30000000 /dev/zero | tr '\\0' x) && echo ready && read end")
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	ready := make([]byte, 6)
	_, err = out.Read(ready)
	require.NoError(t, err)
	require.Equal(t, "ready\n", string(ready))
	return func() {
		t.Helper()
		_, err := in.Write([]byte("\n"))
		require.NoError(t, err)
		require.NoError(t, cmd.Wait(), "it was not killed")
	}
}

// CR-1: the kernel of v1 rejects a limit below what is in use, which is reported as on v2.
func TestEnsure_ReportsMemoryInUseOnV1(t *testing.T) {
	const root, parent = "/sys/fs/cgroup", "/lab/cgroupmemory"
	if os.Getuid() != 0 || !isV1(root) {
		t.Skip("needs root and cgroup v1")
	}
	m, err := cgroup.New(cgroup.Config{Root: root, Parent: parent})
	require.NoError(t, err)
	if limits := m.Unenforced(); len(limits) > 0 {
		t.Skip(limits)
	}
	removeCgroups(t, root, parent)
	t.Cleanup(func() { assert.NoError(t, m.Remove(t.Context(), "u1")) })
	group, err := m.Ensure(t.Context(), sized("500m", "64Mi"))
	require.NoError(t, err)
	memory := filepath.Join(root, "memory", group)
	end := allocate(t, memory)
	_, err = m.Raise(t.Context(), sized("200m", "16Mi"))
	require.NoError(t, err, "the kernel may be able to reclaim it when Ensure lowers the limit")
	assert.Equal(t, "67108864", read(t, memory, "memory.limit_in_bytes"))
	assert.Equal(t, "50000", read(t, filepath.Join(root, "cpu", group), "cpu.cfs_quota_us"))
	name, err := m.Ensure(t.Context(), sized("500m", "16Mi"))
	require.ErrorContains(t, err, "memory limit (16777216) below current usage")
	require.Equal(t, group, name)
	assert.Equal(t, "67108864", read(t, memory, "memory.limit_in_bytes"))
	end()
	_, err = m.Ensure(t.Context(), sized("500m", "16Mi"))
	require.NoError(t, err)
	assert.Equal(t, "16777216", read(t, memory, "memory.limit_in_bytes"))
}

// The same on the kernel of v2: the process lives.
func TestVM_KeepsMemoryInUse(t *testing.T) {
	requireVM(t)
	const parent = "/subletcgroupmemory.slice"
	t.Cleanup(func() { _ = exec.Command("systemctl", "stop", parent[1:]).Run() })
	m, err := cgroup.New(cgroup.Config{Parent: parent, Driver: cgroup.Systemd})
	require.NoError(t, err)
	group, err := m.Ensure(t.Context(), sized("500m", "64Mi"))
	require.NoError(t, err)
	dir, unit := cgroups+group, filepath.Base(group)
	require.NoError(t, os.Mkdir(dir+"/c", 0o755)) //nolint:gosec // as a runtime makes it
	end := allocate(t, dir+"/c")
	for range 2 {
		same, err := m.Ensure(t.Context(), sized("200m", "16Mi"))
		require.ErrorContains(t, err, "memory limit (16777216) below current usage")
		require.Equal(t, group, same)
		assert.Equal(t, "67108864", read(t, dir, "memory.max"))
		assert.Equal(t, "67108864", unitProperty(t, unit, "MemoryMax"))
		assert.Equal(t, "20000 100000", read(t, dir, "cpu.max"))
	}
	end()
	require.Contains(t, strings.Split(read(t, dir, "memory.events"), "\n"), "oom_kill 0")
	_, err = m.Ensure(t.Context(), sized("200m", "16Mi"))
	require.NoError(t, err)
	assert.Equal(t, "16777216", read(t, dir, "memory.max"))
	assert.Equal(t, "16777216", unitProperty(t, unit, "MemoryMax"))
	require.NoError(t, m.Remove(t.Context(), "u1"))
}

// CR-1: while containers are resized, limits of their pod are raised but not lowered: a container
// whose resize is rejected would have less than it may use.
func TestRaise_LowersNoLimit(t *testing.T) {
	const dir = "/kubepods/podu1"
	root := madeUpV2(t, dir, "/kubepods/burstable", "/kubepods/besteffort")
	write := writer(t, filepath.Join(root, dir))
	write("memory.current", "1000")
	m, err := cgroup.New(cgroup.Config{Root: root, Parent: "/"})
	require.NoError(t, err)
	_, err = m.Ensure(t.Context(), sized("500m", "64Mi"))
	require.NoError(t, err)
	next, err := cgroup.New(cgroup.Config{Root: root, Parent: "/"}) // knows only what the kernel has
	require.NoError(t, err)
	for _, m := range []*cgroup.Manager{m, next} {
		write("cpu.max", "50000 100000")
		write("memory.max", "67108864")
		limits := func() []string { return []string{read(t, root, dir, "cpu.max"), read(t, root, dir, "memory.max")} }
		for range 2 {
			parent, err := m.Raise(t.Context(), sized("200m", "32Mi"))
			require.NoError(t, err)
			require.Equal(t, dir, parent)
			require.Equal(t, []string{"50000 100000", "67108864"}, limits())
		}
		_, err := m.Raise(t.Context(), sized("200m", "128Mi"))
		require.NoError(t, err)
		require.Equal(t, []string{"50000 100000", "134217728"}, limits())
		write("memory.max", "134217728")
		_, err = m.Raise(t.Context(), sized("800m", "32Mi"))
		require.NoError(t, err)
		require.Equal(t, []string{"80000 100000", "134217728"}, limits())
		write("memory.current", "40000000")
		_, err = m.Raise(t.Context(), sized("800m", "32Mi"))
		require.ErrorContains(t, err, "memory limit (33554432) below current usage", "its containers are not resized")
		write("memory.current", "1000")
		_, err = m.Ensure(t.Context(), sized("200m", "32Mi"))
		require.NoError(t, err)
		require.Equal(t, []string{"20000 100000", "33554432"}, limits())
	}
}
