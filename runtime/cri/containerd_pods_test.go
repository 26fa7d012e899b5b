//go:build linux

package cri

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/runtime"
)

// RT-11 once more: each pod, and what is found inside of it.
func TestLabPods(t *testing.T) {
	c, image := lab(t)
	yes, group := true, int64(4242)
	cases := []struct {
		name string
		edit func(*corev1.Pod, *runtime.RunOptions)
		ask  string
		want string
	}{
		{
			"host-network", func(p *corev1.Pod, m *runtime.RunOptions) { p.Spec.HostNetwork, m.Hostname = true, "" },
			"hostname; head -1 /etc/hosts", must(os.Hostname()) + "\n# Kubernetes-managed hosts file (host network).",
		},
		{
			"host-pid", func(p *corev1.Pod, _ *runtime.RunOptions) { p.Spec.HostPID = true },
			"readlink /proc/self/ns/pid", must(os.Readlink("/proc/self/ns/pid")),
		},
		{
			"shared-processes", func(p *corev1.Pod, _ *runtime.RunOptions) { p.Spec.ShareProcessNamespace = &yes },
			"grep -c . /proc/1/cmdline; cat /proc/1/comm", "1\npause",
		},
		{"own-processes", func(*corev1.Pod, *runtime.RunOptions) {}, "cat /proc/1/comm", "sh"},
		{"sysctl", func(p *corev1.Pod, _ *runtime.RunOptions) {
			p.Spec.SecurityContext.Sysctls = []corev1.Sysctl{{Name: "net.ipv4.ip_unprivileged_port_start", Value: "7"}}
		}, "cat /proc/sys/net/ipv4/ip_unprivileged_port_start", "7"},
		{"dns", func(_ *corev1.Pod, m *runtime.RunOptions) {
			m.DNS = runtime.DNS{Servers: []string{"192.0.2.53"}, Searches: []string{"shop.local"}, Options: []string{"ndots:5"}}
		}, "cat /etc/resolv.conf", "search shop.local\nnameserver 192.0.2.53\noptions ndots:5"},
		{"fs-group", func(p *corev1.Pod, _ *runtime.RunOptions) { p.Spec.SecurityContext.FSGroup = &group }, "id -G | tr ' ' '\\n' | grep 4242", "4242"},
		{"seccomp", func(p *corev1.Pod, _ *runtime.RunOptions) {
			p.Spec.SecurityContext.SeccompProfile = &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault}
		}, "grep Seccomp: /proc/self/status | tr -dc 0-9", "2"},
		{"no-seccomp", func(*corev1.Pod, *runtime.RunOptions) {}, "grep Seccomp: /proc/self/status | tr -dc 0-9", "0"},
		{"capability", func(p *corev1.Pod, _ *runtime.RunOptions) {
			p.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}, Add: []corev1.Capability{"NET_BIND_SERVICE"}}}
		}, "grep CapEff /proc/self/status", "CapEff:\t0000000000000400"},
		{"oom-score", func(p *corev1.Pod, _ *runtime.RunOptions) {
			p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{"memory": resource.MustParse("1Mi")}
		}, "cat /proc/self/oom_score_adj", "999"},
		{"unmasked", func(p *corev1.Pod, _ *runtime.RunOptions) {
			unmasked := corev1.UnmaskedProcMount
			p.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{ProcMount: &unmasked}
		}, "grep -c ' /proc/sys ' /proc/self/mountinfo || true", "0"},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			pod, m := labPod(t, c, tc.name, image, "sh", "-c", "trap exit TERM; sleep 1000 & wait")
			tc.edit(pod, &m)
			require.Empty(t, c.Apply(t.Context(), pod, startAll(pod), m).Failures)
			observed, err := c.Pod(t.Context(), pod.UID)
			require.NoError(t, err)
			out, _, err := c.Exec(t.Context(), observed.Containers[0].ID, []string{"sh", "-c", tc.ask}, time.Minute, 4096)
			require.NoError(t, err)
			assert.Equal(t, tc.want, strings.TrimSpace(string(out)))
		})
	}
}

func must(s string, err error) string {
	if err != nil {
		return err.Error()
	}
	return s
}

// RT-9 and RT-10 on a real runtime: hooks run, and inside the grace period.
func TestLabHooks(t *testing.T) {
	c, image := lab(t)
	pod, m := labPod(t, c, "hooks", image, "sh", "-c", "trap 'echo term >> /data/said; exit 5' TERM; touch /data/up; sleep 1000 & wait")
	require.NoError(t, os.Chmod(m.Dir, 0o777))
	m.Volumes = map[string]runtime.Volume{"data": {HostPath: m.Dir}}
	ct := &pod.Spec.Containers[0]
	ct.VolumeMounts = []corev1.VolumeMount{{Name: "data", MountPath: "/data"}}
	say := func(word string) *corev1.LifecycleHandler {
		return &corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: []string{"sh", "-c", "echo " + word + " >> /data/said"}}}
	}
	ct.Lifecycle = &corev1.Lifecycle{PostStart: say("started"), PreStop: say("stopping")}
	require.Empty(t, c.Apply(t.Context(), pod, startAll(pod), m).Failures)
	observed, err := c.Pod(t.Context(), pod.UID)
	require.NoError(t, err)

	// A command that takes too long ends at its time.
	_, _, err = c.Exec(t.Context(), observed.Containers[0].ID, []string{"sleep", "60"}, time.Second, 10)
	require.ErrorIs(t, err, runtime.ErrDeadlineExceeded)

	require.Eventually(t, func() bool { _, err := os.Stat(filepath.Join(m.Dir, "up")); return err == nil }, time.Minute, 10*time.Millisecond, "a shell without its trap ignores the signal")
	began := time.Now()
	require.NoError(t, c.Kill(t.Context(), pod, observed, runtime.Termination{GracePeriod: 4 * time.Minute}))
	assert.Less(t, time.Since(began), 2*time.Minute)
	observed, err = c.Pod(t.Context(), pod.UID)
	require.NoError(t, err)
	assert.Equal(t, int32(5), observed.Containers[0].ExitCode)
	said, err := os.ReadFile(filepath.Join(m.Dir, "said"))
	require.NoError(t, err)
	assert.Equal(t, "started\nstopping\nterm\n", string(said))
}

// Resources are changed in place, and read back from what the runtime has.
func TestLabResize(t *testing.T) {
	c, image := lab(t)
	pod, m := labPod(t, c, "resize", image, "sh", "-c", "trap exit TERM; sleep 1000 & wait")
	limits := func(cpu, memory string) {
		pod.Spec.Containers[0].Resources = corev1.ResourceRequirements{Limits: corev1.ResourceList{"cpu": resource.MustParse(cpu), "memory": resource.MustParse(memory)}}
		podspec.Default(pod)
	}
	limits("500m", "64Mi")
	require.Empty(t, c.Apply(t.Context(), pod, startAll(pod), m).Failures)
	observed, err := c.Pod(t.Context(), pod.UID)
	require.NoError(t, err)
	id := observed.Containers[0].ID
	for _, want := range [][2]string{{"1", "128Mi"}, {"250m", "32Mi"}} {
		limits(want[0], want[1])
		require.Empty(t, c.Apply(t.Context(), pod, []runtime.Action{{Type: runtime.UpdateResources, Container: "main", ID: id}}, m).Failures)
		observed, err = c.Pod(t.Context(), pod.UID)
		require.NoError(t, err)
		require.Equal(t, id, observed.Containers[0].ID)
		require.NotNil(t, observed.Containers[0].Resources)
		got := fmt.Sprint(observed.Containers[0].Resources.CPULimit, " ", observed.Containers[0].Resources.MemoryLimit)
		assert.Equal(t, want[0]+" "+want[1], got)
	}
}
