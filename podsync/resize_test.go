package podsync_test

import (
	"errors"
	"testing"

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
