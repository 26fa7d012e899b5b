package cgroup

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// onV1 returns the cgroups of the kernel, and a name below their root that the end of the test removes.
func onV1(t *testing.T) (tr *v1, group string) {
	t.Helper()
	if !isDir(filepath.Join(defaultRoot, "cpuset")) || os.Geteuid() != 0 {
		t.Skip("needs root and cgroup v1")
	}
	opened, _, err := openV1(defaultRoot, "/")
	require.NoError(t, err)
	group = "/" + strings.ReplaceAll(t.Name(), "/", "-")
	t.Cleanup(func() { assert.NoError(t, removeGroup(context.WithoutCancel(t.Context()), opened, group)) })
	return opened.(*v1), group //nolint:forcetypeassert // it is of this version
}

func controlOf(t *testing.T, path ...string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(append([]string{defaultRoot}, path...)...))
	require.NoError(t, err)
	return strings.TrimSpace(string(data))
}

// A process can join a pod's cgroup at once, also where another program made the cgroups above it.
func TestCpuset_HasWhatItsParentHas(t *testing.T) {
	tr, group := onV1(t)
	theirs := filepath.Join(defaultRoot, "cpuset", group, "theirs")
	require.NoError(t, os.MkdirAll(theirs, 0o755))
	for _, g := range []string{group + "/theirs/pod", group + "/ours/tier/pod"} {
		require.NoError(t, tr.set(g, limits{}))
		for dir := g; dir != "/"; dir = filepath.Dir(dir) {
			for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
				assert.Equal(t, controlOf(t, "cpuset", file), controlOf(t, "cpuset", dir, file), "%s of %s", file, dir)
			}
		}
	}
	// The kernel copies for containers below, so that nothing is left for the runtime to write.
	container := group + "/ours/tier/pod/container"
	require.NoError(t, os.Mkdir(filepath.Join(defaultRoot, "cpuset", container), 0o755))
	assert.Equal(t, controlOf(t, "cpuset/cpuset.cpus"), controlOf(t, "cpuset", container, "cpuset.cpus"))
	assert.Equal(t, "0", controlOf(t, "cpuset", group, "theirs/cgroup.clone_children"), "another's stays as it is")

	// What it has stays.
	narrow := group + "/ours/narrow"
	require.NoError(t, tr.set(narrow, limits{}))
	require.NoError(t, os.WriteFile(filepath.Join(defaultRoot, "cpuset", narrow, "cpuset.cpus"), []byte("0"), 0))
	require.NoError(t, tr.set(narrow, limits{}))
	assert.Equal(t, "0", controlOf(t, "cpuset", narrow, "cpuset.cpus"))
	require.NoError(t, tr.set(narrow+"/pod", limits{}))
	assert.Equal(t, "0", controlOf(t, "cpuset", narrow, "pod/cpuset.cpus"))
}

// A new cgroup has no limits to reset; one that is left of another pod has, even if the directory with the mark is lost.
func TestV1_ResetsLimitsOfAnExistingCgroup(t *testing.T) {
	tr, group := onV1(t)
	pod := group + "/pod"
	unlimited := func() {
		t.Helper()
		assert.Equal(t, "-1", controlOf(t, "cpu", pod, "cpu.cfs_quota_us"))
		assert.Equal(t, "max", controlOf(t, "pids", pod, "pids.max"))
		limit, _, err := tr.memory(pod)
		require.NoError(t, err)
		assert.Zero(t, limit)
	}
	limited := limits{shares: 100, quota: 20_000, memory: 64 << 20, pids: 30}
	require.NoError(t, tr.set(pod, limits{shares: 100}))
	unlimited()
	require.NoError(t, tr.set(pod, limited))
	assert.Equal(t, "20000", controlOf(t, "cpu", pod, "cpu.cfs_quota_us"))
	require.NoError(t, tr.set(pod, limits{shares: 100}))
	unlimited()

	require.NoError(t, tr.set(pod, limited))
	require.NoError(t, os.Remove(tr.dirs(pod)[0]))
	require.NoError(t, tr.set(pod, limits{shares: 100}))
	unlimited()
}

// The kernel rejects a CPU quota that is higher than that of a cgroup above, such as the node's own, which bounds the pod anyway. The
// pod has all its other limits.
func TestEnsure_QuotaAboveThatOfTheNodeOnV1(t *testing.T) {
	tr, node := onV1(t)
	require.NoError(t, tr.set(node, limits{quota: 50_000}))
	m, err := New(Config{Parent: node, PodPidsLimit: 30})
	require.NoError(t, err)
	both := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("2"), corev1.ResourceMemory: resource.MustParse("64Mi")}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "u1"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{
		Name: "c", Resources: corev1.ResourceRequirements{Requests: both, Limits: both},
	}}}}
	group := node + "/kubepods/podu1"
	ensure := func(quota string) {
		t.Helper()
		parent, err := m.Ensure(t.Context(), pod)
		require.NoError(t, err)
		assert.Equal(t, group, parent)
		assert.Equal(t, quota, controlOf(t, "cpu", group, "cpu.cfs_quota_us"))
		assert.Equal(t, "2048", controlOf(t, "cpu", group, "cpu.shares"))
		assert.Equal(t, "67108864", controlOf(t, "memory", group, "memory.limit_in_bytes"))
		assert.Equal(t, "30", controlOf(t, "pids", group, "pids.max"))
	}
	ensure("-1")
	ensure("-1")
	require.NoError(t, tr.set(node, limits{quota: 300_000}))
	ensure("200000")
}

// A container has at least 1 ms in each period. On v1 the kernel rejects that if its pod may have less of a longer period.
func TestEnsure_PeriodOfContainersOnV1(t *testing.T) {
	tr, node := onV1(t)
	group := node + "/kubepods/burstable/podu1"
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "u1"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{
		Name: "c", Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("50m")}},
	}}}}
	ensure := func(period time.Duration, quota, per string) {
		t.Helper()
		m, err := New(Config{Parent: node, CPUQuotaPeriod: period})
		require.NoError(t, err)
		_, err = m.Ensure(t.Context(), pod)
		require.NoError(t, err)
		assert.Equal(t, quota, controlOf(t, "cpu", group, "cpu.cfs_quota_us"))
		assert.Equal(t, per, controlOf(t, "cpu", group, "cpu.cfs_period_us"))
	}
	ensure(0, "5000", "100000")
	container := filepath.Join(tr.cpu, group, "c")
	require.NoError(t, os.Mkdir(container, 0o755)) //nolint:gosec // as runtimes do
	require.NoError(t, writeControl(filepath.Join(container, "cpu.cfs_period_us"), "5000"))
	require.ErrorIs(t, writeControl(filepath.Join(container, "cpu.cfs_quota_us"), "1000"), unix.EINVAL)
	ensure(5*time.Millisecond, "1000", "5000")
	require.NoError(t, writeControl(filepath.Join(container, "cpu.cfs_quota_us"), "1000"))
	ensure(0, "-1", "100000") // as long as the container has more
	require.NoError(t, writeControl(filepath.Join(container, "cpu.cfs_quota_us"), "-1"))
	ensure(0, "5000", "100000")
}
