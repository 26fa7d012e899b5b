package podsync_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/podsync"
	"github.com/sublet-dev/agent/runtime"
)

// sizedRuntime has a use for the resources of pods.
type sizedRuntime struct{ *fakeNode }

func (r sizedRuntime) UpdatePodResources(_ context.Context, _ *corev1.Pod, sandboxID string, p runtime.PodResources) error {
	return r.step(fmt.Sprintf("announce %s %dm/%dm %dMi", sandboxID, p.CPURequest, p.CPULimit, p.MemoryLimit>>20))
}

// sizedPod has one container, and pod-level resources if podMemory is not "".
func sizedPod(cpu, memory, podMemory string) *corev1.Pod {
	pod := newTestPod()
	pod.Spec.Containers[0].Resources = corev1.ResourceRequirements{
		Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)},
		Limits:   corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1"), corev1.ResourceMemory: resource.MustParse(memory)},
	}
	if podMemory != "" {
		pod.Spec.Resources = &corev1.ResourceRequirements{Limits: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse(podMemory)}}
	}
	podspec.Default(pod)
	return pod
}

// resized is the pod in the runtime, whose container has its resources.
func resized(pod *corev1.Pod) runtime.Pod {
	observed := runningPod(0)
	c, spec := &observed.Containers[0], &pod.Spec.Containers[0]
	c.Hash = runtime.HashContainer(spec)
	c.Resources = &runtime.Resources{
		CPURequest: new(spec.Resources.Requests[corev1.ResourceCPU]), CPULimit: new(spec.Resources.Limits[corev1.ResourceCPU]),
		MemoryLimit: new(spec.Resources.Limits[corev1.ResourceMemory]),
	}
	return observed
}

// syncSteps syncs a pod and returns the steps that change resources.
func syncSteps(t *testing.T, s *podsync.Syncer, n *fakeNode, pod *corev1.Pod, observed runtime.Pod) ([]string, error) {
	t.Helper()
	n.trace = nil
	_, err := s.Sync(t.Context(), pod, observed)
	return slices.DeleteFunc(n.trace, func(step string) bool {
		return step != "apply" && !strings.Contains(step, "cgroup") && !strings.HasPrefix(step, "announce")
	}), err
}

// CR-1: the runtime gets more resources of a pod announced before anything of it does, and less after its containers.
func TestSync_AnnouncesResizes(t *testing.T) {
	for name, tt := range map[string]struct {
		from, to  *corev1.Pod
		restarted bool // the first process that syncs the pod has it resized already
		want      []string
	}{
		"more": {
			from: sizedPod("100m", "32Mi", ""), to: sizedPod("200m", "64Mi", ""),
			want: []string{"announce s 200m/1000m 64Mi", "raise cgroup", "apply", "cgroup"},
		},
		"less": {
			from: sizedPod("200m", "64Mi", ""), to: sizedPod("100m", "32Mi", ""),
			want: []string{"raise cgroup", "apply", "announce s 100m/1000m 32Mi", "cgroup"},
		},
		"more CPU and less memory": {
			from: sizedPod("100m", "64Mi", ""), to: sizedPod("200m", "32Mi", ""),
			want: []string{"announce s 200m/1000m 64Mi", "raise cgroup", "apply", "announce s 200m/1000m 32Mi", "cgroup"},
		},
		"more of the pod alone": {
			from: sizedPod("100m", "32Mi", "64Mi"), to: sizedPod("100m", "32Mi", "128Mi"),
			want: []string{"announce s 100m/1000m 128Mi", "cgroup"},
		},
		"less of the pod alone": {
			from: sizedPod("100m", "32Mi", "128Mi"), to: sizedPod("100m", "32Mi", "64Mi"),
			want: []string{"raise cgroup", "announce s 100m/1000m 64Mi", "cgroup"},
		},
		"a restart of the agent before": {
			from: sizedPod("100m", "32Mi", ""), to: sizedPod("200m", "64Mi", ""), restarted: true,
			want: []string{"announce s 200m/1000m 64Mi", "raise cgroup", "apply", "cgroup"},
		},
		"the same": {from: sizedPod("100m", "32Mi", ""), to: sizedPod("100m", "32Mi", ""), want: []string{"cgroup"}},
	} {
		t.Run(name, func(t *testing.T) {
			n := &fakeNode{phase: corev1.PodRunning, applied: runtime.ApplyResult{Changed: true}}
			cfg := newConfig(t, n)
			cfg.Runtime = sizedRuntime{n}
			s := newSyncer(t, cfg)
			if !tt.restarted {
				steps, err := syncSteps(t, s, n, tt.from, resized(tt.from))
				require.NoError(t, err)
				require.Equal(t, []string{"cgroup"}, steps, "the runtime has them from an earlier process")
			}
			steps, err := syncSteps(t, s, n, tt.to, resized(tt.from))
			require.NoError(t, err)
			assert.Equal(t, tt.want, steps)
			steps, err = syncSteps(t, s, n, tt.to, resized(tt.to))
			require.NoError(t, err)
			assert.Equal(t, []string{"cgroup"}, steps, "announced once")
		})
	}
}

// A new sandbox has the resources of the pod as it is then. Without a cgroup manager they are announced, too.
func TestSync_AnnouncesNoResourcesOfNewSandbox(t *testing.T) {
	n := &fakeNode{phase: corev1.PodRunning, applied: runtime.ApplyResult{Changed: true}}
	cfg := newConfig(t, n)
	cfg.Runtime, cfg.Cgroups = sizedRuntime{n}, nil
	s := newSyncer(t, cfg)
	for _, memory := range []string{"32Mi", "64Mi"} {
		steps, err := syncSteps(t, s, n, sizedPod("100m", memory, ""), runtime.Pod{})
		require.NoError(t, err)
		assert.Equal(t, []string{"apply"}, steps)
	}
	ended := sizedPod("100m", "128Mi", "")
	observed := resized(ended)
	observed.Sandboxes[0].State = runtime.SandboxNotReady
	steps, err := syncSteps(t, s, n, ended, observed)
	require.NoError(t, err)
	assert.Equal(t, []string{"apply"}, steps)
	steps, err = syncSteps(t, s, n, sizedPod("100m", "32Mi", ""), resized(ended))
	require.NoError(t, err)
	assert.Equal(t, []string{"apply", "announce s 100m/1000m 32Mi"}, steps)
}

// A resize that the runtime rejects changes nothing, is reported and tried again; everything else of the pod goes on.
func TestSync_ReportsResizeRejectedByRuntime(t *testing.T) {
	for _, policy := range []corev1.ResourceResizeRestartPolicy{corev1.NotRequired, corev1.RestartContainer} {
		t.Run(string(policy), func(t *testing.T) { testRejectedResize(t, policy) })
	}
}

func testRejectedResize(t *testing.T, policy corev1.ResourceResizeRestartPolicy) {
	t.Helper()
	less, more := sizedPod("100m", "32Mi", ""), sizedPod("200m", "64Mi", "")
	for _, pod := range []*corev1.Pod{less, more} {
		pod.Spec.Containers[0].ResizePolicy = []corev1.ContainerResizePolicy{{ResourceName: corev1.ResourceMemory, RestartPolicy: policy}}
	}
	const announcement, message = "announce s 200m/1000m 64Mi", "resize pod: no memory"
	n := &fakeNode{phase: corev1.PodRunning, applied: runtime.ApplyResult{Changed: true}, fail: map[string]error{announcement: errors.New("no memory")}}
	cfg := newConfig(t, n)
	cfg.Runtime = sizedRuntime{n}
	s := newSyncer(t, cfg)
	_, err := syncSteps(t, s, n, less, resized(less))
	require.NoError(t, err)
	for range 2 {
		steps, err := syncSteps(t, s, n, more, resized(less))
		require.EqualError(t, err, message)
		assert.Equal(t, []string{announcement, "raise cgroup"}, steps)
		assert.Same(t, less, n.limited, "the cgroup keeps its limits")
		failures := n.reports[len(n.reports)-1].Failures
		assert.Equal(t, "ResizeContainerError", failures["main"].Reason)
		assert.Equal(t, corev1.PodReasonError, failures[""].Reason)
		assert.Equal(t, message, failures[""].Message)
	}
	n.fail = nil
	steps, err := syncSteps(t, s, n, more, resized(less))
	require.NoError(t, err)
	assert.Equal(t, []string{announcement, "raise cgroup", "apply", "cgroup"}, steps)

	const release = "announce s 100m/1000m 32Mi"
	n.fail = map[string]error{release: errors.New("busy")}
	steps, err = syncSteps(t, s, n, less, resized(more))
	require.EqualError(t, err, "resize pod: busy")
	assert.Equal(t, []string{"raise cgroup", "apply", release}, steps)
	steps, err = syncSteps(t, s, n, less, resized(less))
	require.EqualError(t, err, "resize pod: busy")
	assert.Equal(t, []string{"raise cgroup", release}, steps)
	n.fail = nil
	steps, err = syncSteps(t, s, n, less, resized(less))
	require.NoError(t, err)
	assert.Equal(t, []string{"raise cgroup", release, "cgroup"}, steps)
	assert.Same(t, less, n.limited)
}

// Less is not announced while a container has more, nor while the memory of the pod is in use.
func TestSync_AnnouncesNoLessThanPodHas(t *testing.T) {
	less, more := sizedPod("100m", "32Mi", "64Mi"), sizedPod("200m", "64Mi", "128Mi")
	inUse := errors.New("in use")
	n := &fakeNode{phase: corev1.PodRunning, applied: runtime.ApplyResult{Failures: map[string]runtime.Failure{"main": {Reason: "ResizeContainerError", Err: inUse}}}}
	cfg := newConfig(t, n)
	cfg.Runtime = sizedRuntime{n}
	s := newSyncer(t, cfg)
	_, err := syncSteps(t, s, n, more, resized(more))
	require.NoError(t, err)
	steps, err := syncSteps(t, s, n, less, resized(more))
	require.ErrorIs(t, err, inUse)
	assert.Equal(t, []string{"raise cgroup", "apply"}, steps)
	n.inUse = inUse
	steps, err = syncSteps(t, s, n, less, resized(less))
	require.ErrorIs(t, err, inUse)
	assert.Equal(t, []string{"raise cgroup"}, steps)
}

// CR-1: less that an earlier process has given to the containers of a pod, but not announced, is announced by the next one.
func TestSync_AnnouncesResizeOfEarlierProcess(t *testing.T) {
	less := sizedPod("100m", "32Mi", "")
	n := &fakeNode{phase: corev1.PodRunning, applied: runtime.ApplyResult{Changed: true}}
	cfg := newConfig(t, n)
	cfg.Runtime = sizedRuntime{n}
	n.saved = corev1.PodStatus{Phase: n.phase, Conditions: []corev1.PodCondition{{Type: corev1.PodResizeInProgress, Status: corev1.ConditionTrue}}}
	s := newSyncer(t, cfg)
	steps, err := syncSteps(t, s, n, less, resized(less))
	require.NoError(t, err)
	assert.Equal(t, []string{"announce s 100m/1000m 32Mi", "cgroup"}, steps)
	steps, err = syncSteps(t, s, n, less, resized(less))
	require.NoError(t, err)
	assert.Equal(t, []string{"cgroup"}, steps, "announced once")
}
