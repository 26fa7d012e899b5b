package status

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sublet-dev/agent/runtime"
)

func newTestPod() *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{UID: "u", Name: "p", Namespace: "ns"},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "app:1"}}},
	}
}

func newTestReport() *runtime.Report {
	return &runtime.Report{
		Observed: runtime.Pod{
			UID: "u", ObservedAt: time.Date(2026, 11, 21, 0, 0, 0, 0, time.UTC),
			Sandboxes:  []runtime.Sandbox{{ID: "s", State: runtime.SandboxReady}},
			Containers: []runtime.Container{{ID: "c-0", Name: "c", State: runtime.Running}},
		},
		Probes: runtime.PodProbeResults{"c-0": {Startup: runtime.ProbeSuccess}},
	}
}

func TestGenerateInputs_Equal(t *testing.T) {
	pod, report := newTestPod(), newTestReport()
	env := NodeInfo{RuntimeName: "sim", HostIPs: []string{"10.0.0.1"}}
	in := inputs(pod, report, env)
	require.NotNil(t, in)
	require.True(t, in.equal(pod, report, env))
	for name, change := range map[string]func(r *runtime.Report, env *NodeInfo){
		"time of observation": func(r *runtime.Report, _ *NodeInfo) { r.Observed.ObservedAt = r.Observed.ObservedAt.Add(1) },
		"probe results":       func(r *runtime.Report, _ *NodeInfo) { r.Probes = nil },
		"resources":           func(r *runtime.Report, _ *NodeInfo) { r.Resources = runtime.ResourceStatuses{"c": {{Name: "gpu"}}} },
		"runtime name":        func(_ *runtime.Report, env *NodeInfo) { env.RuntimeName = "other" },
		"read-only mounts": func(_ *runtime.Report, env *NodeInfo) {
			env.Handlers = []runtime.Handler{{RecursiveReadOnlyMounts: true}}
		},
		"handlers":               func(_ *runtime.Report, env *NodeInfo) { env.Handlers = []runtime.Handler{{Name: "kata"}} },
		"a runtime of pods":      func(_ *runtime.Report, env *NodeInfo) { env.RunsPods = true },
		"host addresses":         func(_ *runtime.Report, env *NodeInfo) { env.HostIPs = nil },
		"a failure":              func(r *runtime.Report, _ *NodeInfo) { r.Failures = map[string]runtime.Failure{"c": {}} },
		"a pod that has to wait": func(r *runtime.Report, _ *NodeInfo) { r.Blocked = &runtime.Failure{} },
	} {
		r, e := *report, env
		change(&r, &e)
		assert.False(t, in.equal(pod, &r, e), name)
	}
	assert.False(t, in.equal(newTestPod(), report, env), "pod")
}

// A status with a change in progress is generated each time: it depends on more
// than the inputs that are compared.
func TestInputs_NoneForPodInTransition(t *testing.T) {
	for name, change := range map[string]func(r *runtime.Report){
		"termination": func(r *runtime.Report) { r.Termination = &runtime.Termination{} },
		"finished":    func(r *runtime.Report) { r.Finished = true },
		"blocked":     func(r *runtime.Report) { r.Blocked = &runtime.Failure{} },
		"failure":     func(r *runtime.Report) { r.Failures = map[string]runtime.Failure{"c": {}} },
	} {
		r := newTestReport()
		change(r)
		assert.Nil(t, inputs(newTestPod(), r, NodeInfo{}), name)
	}
}

func TestManager_UnchangedAfterEqualStatus(t *testing.T) {
	pod, report := newTestPod(), newTestReport()
	newManager := func(t *testing.T) *Manager {
		t.Helper()
		m, err := New(Config{Sinks: []Sink{&slowSink{}}})
		require.NoError(t, err)
		m.Observe(pod, *report)
		m.Observe(pod, *report)
		return m
	}
	m := newManager(t)
	st, ok := m.unchanged(pod, report, NodeInfo{})
	require.True(t, ok)
	assert.Len(t, st.ContainerStatuses, 1)
	for name, change := range map[string]func(m *Manager){
		"a first status": func(m *Manager) { m.Observe(newTestPod(), *report) },
		"forgotten":      func(m *Manager) { m.Forget("u") },
		"finished":       func(m *Manager) { m.entries["u"].unfinished = false },
		"restored":       func(m *Manager) { m.entries["u"].restored = true },
		"unknown":        func(m *Manager) { delete(m.entries, "u") },
	} {
		m := newManager(t)
		change(m)
		want := pod
		if name == "a first status" {
			want = newTestPod()
		}
		st, ok := m.unchanged(want, report, NodeInfo{})
		assert.False(t, ok, name)
		assert.Equal(t, corev1.PodStatus{}, st, name)
	}
	st, ok = m.unchanged(pod, &runtime.Report{Finished: true}, NodeInfo{})
	assert.False(t, ok, "in transition")
	assert.Equal(t, corev1.PodStatus{}, st)
}

func TestManager_GetDeletedPod(t *testing.T) {
	m, err := New(Config{Sinks: []Sink{&slowSink{}}})
	require.NoError(t, err)
	pod := newTestPod()
	m.Observe(pod, runtime.Report{Finished: true})
	_, ok := m.Get("u")
	require.True(t, ok)
	m.Forget("u")
	st, ok := m.Get("u")
	assert.False(t, ok, "only its deletion is left to send")
	assert.Equal(t, corev1.PodStatus{}, st)
	assert.False(t, m.IsRestored("u"))
	assert.False(t, m.IsRestored("unknown"))
	m.Restore(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "v"}})
	assert.True(t, m.IsRestored("v"))
	m.Observe(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "v"}}, runtime.Report{})
	assert.False(t, m.IsRestored("v"))
}
