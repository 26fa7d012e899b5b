package cgroup_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/cgroup"
	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/runtime"
)

func podOf(uid types.UID, requests, limits map[corev1.ResourceName]string) *corev1.Pod {
	list := func(m map[corev1.ResourceName]string) corev1.ResourceList {
		out := corev1.ResourceList{}
		for name, q := range m {
			out[name] = resource.MustParse(q)
		}
		return out
	}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "ns", UID: uid},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{
			Name: "c", Resources: corev1.ResourceRequirements{Requests: list(requests), Limits: list(limits)},
		}}},
	}
}

type figures = map[corev1.ResourceName]string

func besteffort(uid types.UID) *corev1.Pod { return podOf(uid, nil, nil) }

func burstable(uid types.UID) *corev1.Pod {
	return podOf(uid, figures{"cpu": "250m", "memory": "64Mi"}, figures{"memory": "128Mi"})
}

func guaranteed(uid types.UID) *corev1.Pod {
	both := figures{"cpu": "500m", "memory": "64Mi"}
	return podOf(uid, both, both)
}

// The names are the kubelet's, for both drivers. The runtime gets the path, also that of a slice.
func TestNames(t *testing.T) {
	for _, tc := range []struct {
		driver cgroup.Driver
		parent string
		pod    *corev1.Pod
		dir    string
	}{
		{cgroup.Cgroupfs, "/", guaranteed("a-b"), "/kubepods/poda-b"},
		{cgroup.Cgroupfs, "/", burstable("a-b"), "/kubepods/burstable/poda-b"},
		{cgroup.Cgroupfs, "/lab/x", besteffort("a-b"), "/lab/x/kubepods/besteffort/poda-b"},
		{cgroup.Systemd, "/", guaranteed("a-b"), "/kubepods.slice/kubepods-poda_b.slice"},
		{cgroup.Systemd, "/", besteffort("a-b"), "/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-poda_b.slice"},
		{
			cgroup.Systemd, "/lab.slice", burstable("a-b"),
			"/lab.slice/lab-kubepods.slice/lab-kubepods-burstable.slice/lab-kubepods-burstable-poda_b.slice",
		},
	} {
		root := madeUpV2(t, tc.dir)
		m, err := cgroup.New(cgroup.Config{Root: root, Parent: tc.parent, Driver: tc.driver})
		require.NoError(t, err)
		reported, err := m.Ensure(t.Context(), tc.pod)
		require.NoError(t, err)
		assert.Equal(t, tc.dir, reported)
		assert.DirExists(t, filepath.Join(root, tc.dir))
		known, err := m.PodUIDs()
		require.NoError(t, err)
		assert.Equal(t, []types.UID{"a-b"}, known)
	}
}

// madeUpV2 creates a v2 tree whose cgroups down to dir have the files that the kernel would
// create. Files that are missing here, the cgroup library creates without permission to
// open them again, which only root can ignore.
func madeUpV2(t *testing.T, dirs ...string) string {
	t.Helper()
	root := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(root, "cgroup.controllers"), []byte("cpu memory pids\n"), 0o600))
	for _, dir := range append(dirs, "/") {
		for at := dir; ; at = filepath.Dir(at) {
			require.NoError(t, os.MkdirAll(filepath.Join(root, at), 0o700))
			for _, f := range []string{"cgroup.subtree_control", "cpu.max", "cpu.weight", "memory.min", "memory.low", "memory.high", "memory.max", "pids.max"} {
				require.NoError(t, os.WriteFile(filepath.Join(root, at, f), nil, 0o600))
			}
			require.NoError(t, os.WriteFile(filepath.Join(root, at, "cgroup.controllers"), []byte("cpu memory pids\n"), 0o600))
			if at == "/" {
				break
			}
		}
	}
	return root
}

func read(t *testing.T, path ...string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(path...))
	require.NoError(t, err)
	return strings.TrimSpace(string(data))
}

func TestManager_LimitsOnV2(t *testing.T) {
	const dir = "/kubepods/burstable/podu1"
	root := madeUpV2(t, dir, "/kubepods/podu2", "/kubepods/besteffort")
	m, err := cgroup.New(cgroup.Config{
		Root: root, PodPidsLimit: 99,
		Allocatable: corev1.ResourceList{"cpu": resource.MustParse("2"), "memory": resource.MustParse("1Gi")},
	})
	require.NoError(t, err)
	_, err = m.Ensure(t.Context(), burstable("u1"))
	require.NoError(t, err)
	_, err = m.Ensure(t.Context(), guaranteed("u2"))
	require.NoError(t, err)
	assert.Equal(t, "35", read(t, root, dir, "cpu.weight"))
	assert.Equal(t, "max 100000", read(t, root, dir, "cpu.max"))
	assert.Equal(t, "134217728", read(t, root, dir, "memory.max"))
	assert.Equal(t, "99", read(t, root, dir, "pids.max"))
	assert.Equal(t, "50000 100000", read(t, root, "/kubepods/podu2/cpu.max"))
	assert.Equal(t, "59", read(t, root, "/kubepods/podu2/cpu.weight"))
	assert.Equal(t, "1", read(t, root, "/kubepods/besteffort/cpu.weight"))
	assert.Equal(t, "35", read(t, root, "/kubepods/burstable/cpu.weight"))
	assert.Equal(t, "174", read(t, root, "/kubepods/cpu.weight"))
	assert.Equal(t, "1073741824", read(t, root, "/kubepods/memory.max"))
	assert.Contains(t, read(t, root, "/kubepods/cgroup.subtree_control"), "+memory")
	assert.Empty(t, m.Unenforced())

	// A limit that is removed from the spec is removed from the cgroup.
	p := burstable("u1")
	p.Spec.Containers[0].Resources.Limits = nil
	_, err = m.Ensure(t.Context(), p)
	require.NoError(t, err)
	assert.Equal(t, "max", read(t, root, dir, "memory.max"))
}

// Without cgroups nothing fails, and Unenforced reports what is missing.
func TestManager_WithoutCgroups(t *testing.T) {
	m, err := cgroup.New(cgroup.Config{Root: filepath.Join(t.TempDir(), "none")})
	require.NoError(t, err)
	parent, err := m.Ensure(t.Context(), burstable("u"))
	require.NoError(t, err)
	assert.Empty(t, parent)
	require.NoError(t, m.Remove(t.Context(), "u"))
	known, err := m.PodUIDs()
	require.NoError(t, err)
	assert.Empty(t, known)
	require.Len(t, m.Unenforced(), 1)
	assert.Contains(t, m.Unenforced()[0], "no limits and no QoS weights for pods: no cgroups")
}

func TestManager_ReportsMissingControllers(t *testing.T) {
	root := madeUpV2(t)
	require.NoError(t, os.WriteFile(filepath.Join(root, "cgroup.controllers"), []byte("cpu\n"), 0o600))
	m, err := cgroup.New(cgroup.Config{Root: root})
	require.NoError(t, err)
	limits := strings.Join(m.Unenforced(), "\n")
	assert.Contains(t, limits, "memory limits of pods: controller memory")
	assert.Contains(t, limits, "limits on processes of pods: controller pids")
	assert.NotContains(t, limits, "cpu weights")
}

// The driver of the runtime determines the names. A runtime that cannot report it gets
// the default, and one that does not answer yet is queried again.
func TestEnsure_UsesTheDriverOfTheRuntime(t *testing.T) {
	for _, tc := range []struct {
		says string
		err  error
		want string
		bad  string
	}{
		{says: "systemd", want: "/kubepods.slice/kubepods-poda_b.slice"},
		{says: "cgroupfs", want: "/kubepods/poda-b"},
		{says: "", want: "/kubepods/poda-b"},
		{err: fmt.Errorf("call: %w", runtime.ErrUnsupported), want: "/kubepods/poda-b"},
		{err: errors.New("unavailable"), bad: "get cgroup driver of the runtime: unavailable"},
		{says: "other", bad: `"other" of the runtime is neither`},
	} {
		asked := 0
		m, err := cgroup.New(cgroup.Config{
			Root:          madeUpV2(t, "/kubepods/poda-b", "/kubepods.slice/kubepods-poda_b.slice"),
			RuntimeDriver: func(context.Context) (string, error) { asked++; return tc.says, tc.err },
		})
		require.NoError(t, err)
		for range 2 {
			parent, err := m.Ensure(t.Context(), guaranteed("a-b"))
			if tc.bad != "" {
				require.ErrorContains(t, err, tc.bad)
				continue
			}
			require.NoError(t, err)
			assert.Equal(t, tc.want, parent)
		}
		if tc.bad == "" {
			assert.Equal(t, 1, asked)
		}
	}
}

func TestManager_RejectsInvalidUIDs(t *testing.T) {
	m, err := cgroup.New(cgroup.Config{Root: madeUpV2(t)})
	require.NoError(t, err)
	for _, uid := range []types.UID{"", "..", "a/b", "a\x00", types.UID(strings.Repeat("x", 300)), ".a"} {
		_, err := m.Ensure(t.Context(), burstable(uid))
		require.Error(t, err, "%q", uid)
		require.Error(t, m.Remove(t.Context(), uid), "%q", uid)
	}
}

func TestNew_ReportsAllErrors(t *testing.T) {
	_, err := cgroup.New(cgroup.Config{Root: "x", Parent: "../y", Driver: "z", PodPidsLimit: -1, CPUQuotaPeriod: time.Minute})
	for _, part := range []string{"Config.CPUQuotaPeriod: must be from 1ms to 1s, not 1m0s", `Config.Root: "x"`, `parent "../y"`, `Config.Driver: "z"`, "must not be negative: -1"} {
		require.ErrorContains(t, err, part)
	}
	for parent, ok := range map[string]bool{
		"/": true, "/lab.slice": true, "/a.slice/a-b.slice": true,
		"/lab": false, "/a.slice/b.slice": false, "/a.slice/": false, "/.slice": false,
	} {
		_, err := cgroup.New(cgroup.Config{Driver: cgroup.Systemd, Parent: parent})
		assert.Equal(t, ok, err == nil, "%s: %v", parent, err)
	}
}

// A pod with CPUs for itself has no quota, which is removed if the pod had one.
func TestManager_NoQuotaOnExclusiveCPUs(t *testing.T) {
	root := madeUpV2(t, "/kubepods/podu2", "/kubepods/burstable", "/kubepods/besteffort")
	has := false
	m, err := cgroup.New(cgroup.Config{Root: root, HasExclusiveCPUs: func(pod *corev1.Pod) bool { return has && pod.UID == "u2" }})
	require.NoError(t, err)
	ensure := func() {
		t.Helper()
		_, err := m.Ensure(t.Context(), guaranteed("u2"))
		require.NoError(t, err)
	}
	quota := func() string { return read(t, root, "/kubepods/podu2/cpu.max") }
	ensure()
	assert.Equal(t, "50000 100000", quota())
	has = true
	ensure()
	assert.Equal(t, "max 100000", quota())
	assert.Equal(t, "67108864", read(t, root, "/kubepods/podu2/memory.max"))
	has = false
	ensure()
	assert.Equal(t, "50000 100000", quota())

	m, err = cgroup.New(cgroup.Config{Root: root, NoCPUQuota: true})
	require.NoError(t, err)
	ensure()
	assert.Equal(t, "max 100000", quota(), "no pod of this node has one")

	m, err = cgroup.New(cgroup.Config{Root: root, CPUQuotaPeriod: 5 * time.Millisecond})
	require.NoError(t, err)
	ensure()
	assert.Equal(t, "2500 5000", quota(), "of the period of its containers")
}

// CR-1: on the cgroups of the kernel limits are set, remaining processes are killed, and
// no directory is left in any hierarchy, including those that a runtime has created.
func TestManager_OnTheKernel(t *testing.T) {
	const root, parent = "/sys/fs/cgroup", "/lab/cgrouptest"
	if os.Getuid() != 0 || !isV1(root) {
		t.Skip("needs root and cgroup v1")
	}
	m, err := cgroup.New(cgroup.Config{Root: root, Parent: parent, PodPidsLimit: 50})
	require.NoError(t, err)
	if limits := m.Unenforced(); len(limits) > 0 {
		t.Skip(limits)
	}
	removeCgroups(t, root, parent)
	group, err := m.Ensure(t.Context(), burstable("u1"))
	require.NoError(t, err)
	require.Equal(t, parent+"/kubepods/burstable/podu1", group)
	assert.Equal(t, "134217728", read(t, root, "memory", group, "memory.limit_in_bytes"))
	assert.Equal(t, "256", read(t, root, "cpu", group, "cpu.shares"))
	assert.Equal(t, "-1", read(t, root, "cpu", group, "cpu.cfs_quota_us"))
	assert.Equal(t, "50", read(t, root, "pids", group, "pids.max"))
	assert.Equal(t, "256", read(t, root, "cpu", parent, "kubepods/burstable/cpu.shares"))
	assert.Equal(t, read(t, root, "cpuset/cpuset.cpus"), read(t, root, "cpuset", group, "cpuset.cpus"))

	// A limit on processes is removed with the configuration that has set it.
	unlimited, err := cgroup.New(cgroup.Config{Root: root, Parent: parent})
	require.NoError(t, err)
	_, err = unlimited.Ensure(t.Context(), burstable("u1"))
	require.NoError(t, err)
	assert.Equal(t, "max", read(t, root, "pids", group, "pids.max"))

	// Version 1 rejects a limit of a pod that is lower than those of its containers.
	cpus := func(limit string) *corev1.Pod {
		return podOf("u3", figures{"cpu": "100m"}, figures{"cpu": limit})
	}
	group3, err := m.Ensure(t.Context(), cpus("800m"))
	require.NoError(t, err)
	quota := func(group string) string { return filepath.Join(root, "cpu", group, "cpu.cfs_quota_us") }
	require.NoError(t, os.Mkdir(filepath.Dir(quota(group3+"/c")), 0o755))
	require.NoError(t, os.WriteFile(quota(group3+"/c"), []byte("80000"), 0o600))
	for range 2 {
		_, err = m.Ensure(t.Context(), cpus("200m"))
		require.NoError(t, err, "the containers are still to be changed, which needs the group")
		assert.Equal(t, "80000", read(t, quota(group3)))
	}
	require.NoError(t, os.WriteFile(quota(group3+"/c"), []byte("20000"), 0o600))
	_, err = m.Ensure(t.Context(), cpus("200m"))
	require.NoError(t, err)
	assert.Equal(t, "20000", read(t, quota(group3)))
	require.NoError(t, m.Remove(t.Context(), "u3"))

	group2, err := m.Ensure(t.Context(), guaranteed("u2"))
	require.NoError(t, err)
	assert.Equal(t, "50000", read(t, root, "cpu", group2, "cpu.cfs_quota_us"))

	// As a runtime does: a cgroup of a container in every hierarchy, and a process.
	for _, h := range []string{"memory", "systemd", "unified", "devices", "pids"} {
		require.NoError(t, os.MkdirAll(filepath.Join(root, h, group, "ctr"), 0o755))
	}
	left := exec.Command("sleep", "1000")
	require.NoError(t, left.Start())
	for _, h := range []string{"memory", "systemd", "pids"} {
		require.NoError(t, os.WriteFile(filepath.Join(root, h, group, "ctr/cgroup.procs"), []byte(itoa(left.Process.Pid)), 0o600))
	}
	ended := make(chan error, 1)
	go func() { ended <- left.Wait() }()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	require.NoError(t, m.Remove(ctx, "u1"))
	require.Error(t, <-ended)
	require.NoError(t, m.Remove(ctx, "u2"))
	dirs, err := filepath.Glob(root + "/*" + parent + "/kubepods/*/podu*")
	require.NoError(t, err)
	assert.Empty(t, dirs)
	assert.Equal(t, "2", read(t, root, "cpu", parent, "kubepods/burstable/cpu.shares"))
	known, err := m.PodUIDs()
	require.NoError(t, err)
	assert.Empty(t, known)
	require.NoError(t, m.Remove(ctx, "u1"))
}

// Two agents with one parent do not touch each other's cgroups. A restarted agent
// recognizes the cgroups of its previous process.
func TestManager_OwnersDoNotTouchEachOther(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root to mark directories")
	}
	root := madeUpV2(t, "/kubepods/podu1", "/kubepods/podu2", "/kubepods/podu3")
	for _, uid := range []string{"u1", "u2", "u3"} { // as on the kernel's own, there are no files to remove
		require.NoError(t, os.RemoveAll(filepath.Join(root, "kubepods/pod"+uid)))
	}
	agent := func(owner string) *cgroup.Manager {
		m, err := cgroup.New(cgroup.Config{Root: root, Owner: func() string { return owner }})
		require.NoError(t, err)
		return m
	}
	known := func(m *cgroup.Manager) []types.UID {
		uids, err := m.PodUIDs()
		require.NoError(t, err)
		return uids
	}
	one, two, unmarked := agent("/var/lib/one"), agent("/var/lib/two"), agent("")
	for uid, m := range map[types.UID]*cgroup.Manager{"u1": one, "u2": two, "u3": unmarked} {
		_, err := m.Ensure(t.Context(), guaranteed(uid))
		require.NoError(t, err)
	}
	if one = agent("/var/lib/one"); len(known(one)) == 0 {
		t.Skip("the file system keeps no marks")
	}
	assert.Equal(t, []types.UID{"u1"}, known(one))
	assert.Equal(t, []types.UID{"u2"}, known(two))
	assert.Equal(t, []types.UID{"u3"}, known(unmarked))
	assert.Empty(t, known(agent("")))
	assert.Empty(t, known(agent("/var/lib/three")))
}

func isV1(root string) bool {
	_, err := os.Stat(filepath.Join(root, "memory/memory.limit_in_bytes"))
	return err == nil
}

func itoa(n int) string { return strconv.Itoa(n) }

// The memory that pods request is reserved for them and for the cgroups above, and what they
// use beyond is throttled where the pod has limits of its own. Without MemoryQoS earlier values
// are removed.
func TestManager_MemoryQoS(t *testing.T) {
	const low, high, bare = "/kubepods/burstable/podlow", "/kubepods/burstable/podhigh", "/kubepods/besteffort/podbare"
	root := madeUpV2(t, low, high, bare, "/kubepods/podmin")
	own := podOf("high", figures{"memory": "32Mi"}, nil)
	own.Spec.Resources = &corev1.ResourceRequirements{
		Requests: corev1.ResourceList{"memory": resource.MustParse("64Mi")}, Limits: corev1.ResourceList{"memory": resource.MustParse("128Mi")},
	}
	ensure := func(qos podspec.MemoryQoS) {
		t.Helper()
		m, err := cgroup.New(cgroup.Config{Root: root, MemoryQoS: qos})
		require.NoError(t, err)
		for _, pod := range []*corev1.Pod{guaranteed("min"), burstable("low"), own, besteffort("bare")} {
			_, err := m.Ensure(t.Context(), pod)
			require.NoError(t, err)
		}
		assert.Empty(t, m.Unenforced())
	}
	check := func(dir, minimum, low, high string) {
		t.Helper()
		assert.Equal(t, []string{minimum, low, high}, []string{read(t, root, dir, "memory.min"), read(t, root, dir, "memory.low"), read(t, root, dir, "memory.high")}, dir)
	}
	const mi64, mi96, mi128, mi192 = "67108864", "100663296", "134217728", "201326592"
	ensure(podspec.MemoryQoS{ReserveRequests: true, ThrottlingFactor: 0.5})
	check("/kubepods/podmin", mi64, "0", "max")
	check(low, "0", mi64, "max")
	check(high, "0", mi64, mi96)
	check(bare, "0", "0", "max")
	check("/kubepods/besteffort", "0", "0", "max")
	check("/kubepods/burstable", "0", mi128, "max")
	check("/kubepods", mi192, mi128, "max")

	ensure(podspec.MemoryQoS{})
	for _, dir := range []string{"/kubepods", "/kubepods/burstable", "/kubepods/podmin", low, high} {
		check(dir, "0", "0", "max")
	}
}

func TestManager_MemoryQoSNeedsV2(t *testing.T) {
	root := t.TempDir()
	for _, controller := range []string{"cpu", "memory", "pids"} {
		require.NoError(t, os.Mkdir(filepath.Join(root, controller), 0o700))
	}
	m, err := cgroup.New(cgroup.Config{Root: root, MemoryQoS: podspec.MemoryQoS{ReserveRequests: true}})
	require.NoError(t, err)
	assert.Equal(t, []string{"MemoryQoS: it needs cgroup v2 with the controller memory"}, m.Unenforced())
	_, err = cgroup.New(cgroup.Config{MemoryQoS: podspec.MemoryQoS{ThrottlingFactor: 2}})
	require.ErrorContains(t, err, "Config.MemoryQoS.ThrottlingFactor must be from 0 to 1")
}

// removeCgroups removes what a test on the cgroups v1 of the machine leaves of those above its pods.
func removeCgroups(t *testing.T, root, parent string) {
	t.Cleanup(func() {
		hierarchies, _ := filepath.Glob(root + "/*" + parent)
		for _, h := range hierarchies {
			for _, sub := range []string{"/kubepods/burstable", "/kubepods/besteffort", "/kubepods", ""} {
				os.Remove(h + sub)
			}
		}
	})
}
