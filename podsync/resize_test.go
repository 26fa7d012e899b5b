package podsync_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/runtime"
)

// RT-2: while the cgroup of a pod cannot get a lower memory limit, its containers are not resized
// either and the resize stays in progress with that error; everything else of the pod goes on.
func TestSync_DefersResizeOfMemoryInUse(t *testing.T) {
	limit := func(memory string) corev1.ResourceRequirements {
		return corev1.ResourceRequirements{Limits: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse(memory)}}
	}
	pod := newTestPod()
	pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{Name: "new", Image: "busybox:1"})
	pod.Spec.Containers[0].Resources = limit("32Mi")
	podspec.Default(pod)
	observed := func(memory string) runtime.Pod {
		p := runningPod(0)
		c := &p.Containers[0]
		c.Hash = runtime.HashContainer(&pod.Spec.Containers[0])
		c.Resources = &runtime.Resources{CPURequest: new(resource.MustParse("2m")), MemoryLimit: new(resource.MustParse(memory))}
		return p
	}
	n := &fakeNode{phase: corev1.PodRunning, inUse: errors.New("40 MiB are in use")}
	s := newSyncer(t, newConfig(t, n))
	planned := func() (types []string) {
		for _, a := range n.plan {
			types = append(types, a.Type.String()+" "+a.Container)
		}
		n.plan = nil
		return types
	}
	out, err := s.Sync(t.Context(), pod, observed("64Mi"))
	require.EqualError(t, err, "40 MiB are in use")
	assert.False(t, out.Settled)
	assert.Equal(t, []string{"StartContainer new"}, planned())
	assert.Equal(t, "/kubepods/podx", n.opts.CgroupParent)
	failure := n.reports[len(n.reports)-1].Failures["main"]
	assert.Equal(t, "ResizeContainerError", failure.Reason)
	assert.Equal(t, "40 MiB are in use", failure.Message)
	require.ErrorIs(t, failure.Err, n.inUse)
	assert.Empty(t, n.events)

	pod.Spec.Containers = pod.Spec.Containers[:1]
	out, err = s.Sync(t.Context(), pod, observed("32Mi"))
	require.EqualError(t, err, "40 MiB are in use", "of the pod alone")
	failures := n.reports[len(n.reports)-1].Failures
	require.Len(t, failures, 1)
	assert.Equal(t, runtime.Failure{Reason: corev1.PodReasonError, Message: "40 MiB are in use", Err: n.inUse}, failures[""])
	assert.True(t, out.Unchanged)
	assert.False(t, out.Settled, "it is tried again soon")
	assert.Empty(t, planned())

	n.inUse = nil
	_, err = s.Sync(t.Context(), pod, observed("64Mi"))
	require.NoError(t, err)
	assert.Equal(t, []string{"UpdateResources main"}, planned())
	assert.Empty(t, n.reports[len(n.reports)-1].Failures)
}

// CR-1: the limits of the cgroup of a pod are raised before containers are resized and lowered
// after that, unless the runtime has rejected one of the resizes.
func TestSync_LowersLimitsOfPodAfterContainers(t *testing.T) {
	for name, tt := range map[string]struct {
		restarts bool // the resize policy asks for it
		applied  runtime.ApplyResult
		lowerErr error
		after    []string // calls from the first one of a cgroup on
		err      string
	}{
		"resized": {applied: runtime.ApplyResult{Changed: true}, after: []string{"raise cgroup", "mount", "probes", "apply", "cgroup"}},
		"rejected": {
			applied: runtime.ApplyResult{Failures: map[string]runtime.Failure{"main": {Reason: "ResizeContainerError", Err: errors.New("in use")}}},
			after:   []string{"raise cgroup", "mount", "probes", "apply", "status"}, err: "container main: ResizeContainerError: in use",
		},
		"resized by a restart": {
			restarts: true, applied: runtime.ApplyResult{Changed: true}, after: []string{"raise cgroup", "mount", "probes", "apply", "cgroup"},
		},
		"not stopped": {
			restarts: true, applied: runtime.ApplyResult{Failures: map[string]runtime.Failure{"main": {Reason: "KillContainerError", Err: errors.New("hangs")}}},
			after: []string{"raise cgroup", "mount", "probes", "apply", "status"}, err: "container main: KillContainerError: hangs",
		},
		"not tried": {
			applied: runtime.ApplyResult{Failures: map[string]runtime.Failure{"": {Reason: "CreatePodSandboxError", Err: errors.New("no network")}}},
			after:   []string{"raise cgroup", "mount", "probes", "apply", "status"}, err: "CreatePodSandboxError: no network",
		},
		"the limit of the pod is rejected": {
			applied: runtime.ApplyResult{Changed: true}, lowerErr: errors.New("busy"),
			after: []string{"raise cgroup", "mount", "probes", "apply", "cgroup", "status"}, err: "busy",
		},
	} {
		t.Run(name, func(t *testing.T) {
			pod := newTestPod()
			pod.Spec.Containers[0].Resources.Limits = corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("32Mi")}
			if tt.restarts {
				pod.Spec.Containers[0].ResizePolicy = []corev1.ContainerResizePolicy{{ResourceName: corev1.ResourceMemory, RestartPolicy: corev1.RestartContainer}}
			}
			podspec.Default(pod)
			observed := runningPod(0)
			c := &observed.Containers[0]
			c.Hash = runtime.HashContainer(&pod.Spec.Containers[0])
			c.Resources = &runtime.Resources{CPURequest: new(resource.MustParse("2m")), MemoryLimit: new(resource.MustParse("64Mi"))}
			n := &fakeNode{phase: corev1.PodRunning, applied: tt.applied, fail: map[string]error{"cgroup": tt.lowerErr}}
			_, err := newSyncer(t, newConfig(t, n)).Sync(t.Context(), pod, observed)
			if tt.err == "" {
				require.NoError(t, err)
			} else {
				require.EqualError(t, err, tt.err)
			}
			require.Contains(t, n.trace, "raise cgroup")
			assert.Equal(t, tt.after, n.trace[slices.Index(n.trace, "raise cgroup"):])
			if tt.lowerErr != nil {
				assert.Equal(t, runtime.Failure{Reason: corev1.PodReasonError, Message: "busy", Err: tt.lowerErr}, n.reports[len(n.reports)-1].Failures[""])
			}
		})
	}
}

// A resize that the containers need nothing for starts and completes, too; one that cannot be made
// is reported once for each reason; and nothing is reported of pods that were not resized.
func TestSync_RecordsResizes(t *testing.T) {
	pod := newTestPod()
	pod.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("16Mi")}
	podspec.Default(pod)
	n := &fakeNode{phase: corev1.PodRunning}
	s := newSyncer(t, newConfig(t, n))
	inProgress := func(reason, message string) {
		n.reported = []corev1.PodCondition{{Type: corev1.PodResizeInProgress, Status: corev1.ConditionTrue, Reason: reason, Message: message}}
	}
	recorded := func() (out []string) {
		for _, e := range n.events {
			out = append(out, e.Type+" "+e.Reason+" "+e.Message)
		}
		n.events = nil
		return out
	}
	sync := func() []string {
		observed := runningPod(0)
		observed.Containers[0].Hash = runtime.HashContainer(&pod.Spec.Containers[0])
		_, err := s.Sync(t.Context(), pod, observed)
		require.NoError(t, err)
		return recorded()
	}
	assert.Empty(t, sync())
	pod = pod.DeepCopy()
	assert.Empty(t, sync(), "an update without other resources")

	pod = pod.DeepCopy()
	pod.Generation = 2
	pod.Spec.Containers[0].Resources.Requests[corev1.ResourceMemory] = resource.MustParse("32Mi")
	const second = `{"containers":[{"name":"main","resources":{"requests":{"memory":"32Mi"}}}],"generation":2}`
	assert.Equal(t, []string{"Normal ResizeStarted Resize started: " + second, "Normal ResizeCompleted Resize completed: " + second}, sync())
	assert.Empty(t, sync())

	pod = pod.DeepCopy()
	pod.Generation = 3
	pod.Spec.Containers[0].Resources.Requests[corev1.ResourceMemory] = resource.MustParse("64Mi")
	const third = `{"containers":[{"name":"main","resources":{"requests":{"memory":"64Mi"}}}],"generation":3`
	inProgress("", "")
	assert.Equal(t, []string{"Normal ResizeStarted Resize started: " + third + "}"}, sync())
	inProgress(corev1.PodReasonError, "in use")
	assert.Equal(t, []string{"Warning ResizeError Resize failed, and is tried again: " + third + `,"error":"in use"}`}, sync())
	assert.Empty(t, sync())
	inProgress(corev1.PodReasonError, "too low")
	assert.Equal(t, []string{"Warning ResizeError Resize failed, and is tried again: " + third + `,"error":"too low"}`}, sync())

	n.saved = corev1.PodStatus{Phase: n.phase, Conditions: n.reported}
	s = newSyncer(t, newConfig(t, n)) // another process
	assert.Empty(t, sync())
	n.reported = nil
	assert.Equal(t, []string{"Normal ResizeCompleted Resize completed: " + third + "}"}, sync())

	n.saved.Conditions = nil
	s = newSyncer(t, newConfig(t, n))
	inProgress("", "") // it was resized while no process ran
	assert.Equal(t, []string{"Normal ResizeStarted Resize started: " + third + "}"}, sync())
}

// A sandbox that replaces another is reported, and its first one is not.
func TestSync_RecordsNewSandboxes(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(pod *corev1.Pod, observed *runtime.Pod)
		want   string
	}{
		"first": {change: func(_ *corev1.Pod, observed *runtime.Pod) {
			*observed = runtime.Pod{UID: observed.UID, ObservedAt: observed.ObservedAt}
		}},
		"same": {change: func(*corev1.Pod, *runtime.Pod) {}},
		"ended": {
			change: func(_ *corev1.Pod, observed *runtime.Pod) { observed.Sandboxes[0].State = runtime.SandboxNotReady },
			want:   "it does not run any more",
		},
		"network": {
			change: func(pod *corev1.Pod, observed *runtime.Pod) {
				observed.Sandboxes[0].HostNetwork = !pod.Spec.HostNetwork
			},
			want: "spec.hostNetwork has changed",
		},
		"address": {
			change: func(_ *corev1.Pod, observed *runtime.Pod) { observed.Sandboxes[0].IPs = nil },
			want:   "it has no IP address any more",
		},
		"two": {
			change: func(_ *corev1.Pod, observed *runtime.Pod) {
				other := observed.Sandboxes[0]
				other.ID += "2"
				observed.Sandboxes = append(observed.Sandboxes, other)
			},
			want: "more than one is running",
		},
	} {
		t.Run(name, func(t *testing.T) {
			pod := newTestPod()
			podspec.Default(pod)
			observed := runningPod(0)
			observed.ObservedAt = time.Now()
			observed.Sandboxes[0].IPs = []string{"10.0.0.1"}
			observed.Containers[0].Hash = runtime.HashContainer(&pod.Spec.Containers[0])
			tt.change(pod, &observed)
			n := &fakeNode{phase: corev1.PodRunning}
			s := newSyncer(t, newConfig(t, n))
			for range 2 { // Apply has no effect
				_, err := s.Sync(t.Context(), pod, observed)
				require.NoError(t, err)
			}
			if tt.want == "" {
				assert.Empty(t, n.events)
				return
			}
			require.Len(t, n.events, 1)
			assert.Equal(t, "SandboxChanged", n.events[0].Reason)
			assert.Equal(t, "A new sandbox replaces that of the pod, with all its containers: "+tt.want, n.events[0].Message)
		})
	}
}
