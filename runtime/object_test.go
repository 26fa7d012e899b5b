package runtime_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/runtime"
)

// podSyncer has the capability runtime.PodSyncer.
type podSyncer struct{ runtime.PodSyncer }

func TestRunsPods(t *testing.T) {
	assert.True(t, runtime.RunsPods(podSyncer{}))
	assert.False(t, runtime.RunsPods(struct{}{}))
}

// A node declares what plans have, and nothing for a runtime without plans.
func TestDeclaredFeatures(t *testing.T) {
	assert.Equal(t, []string{
		"InPlacePodLevelResourcesVerticalScaling", "InPlacePodVerticalScalingInitContainers", "RestartAllContainersOnContainerExits",
	}, runtime.DeclaredFeatures(struct{}{}))
	assert.Empty(t, runtime.DeclaredFeatures(podSyncer{}))
}

func withObject(st corev1.PodStatus) runtime.Pod {
	return runtime.Pod{UID: "u", Object: &corev1.Pod{Status: st}}
}

// An object may run until its phase is terminal.
func TestPod_Object(t *testing.T) {
	for phase, running := range map[corev1.PodPhase]bool{
		"": true, corev1.PodPending: true, corev1.PodRunning: true, corev1.PodUnknown: true, corev1.PodSucceeded: false, corev1.PodFailed: false,
	} {
		p := withObject(corev1.PodStatus{Phase: phase})
		assert.False(t, p.IsEmpty())
		assert.Equal(t, running, p.CouldHaveRunningContainers(), phase)
	}
}

func TestPod_Source(t *testing.T) {
	annotations := map[string]string{"kubernetes.io/config.source": "api"}
	object := withObject(corev1.PodStatus{})
	object.Object.Annotations = annotations
	for name, c := range map[string]struct {
		pod  runtime.Pod
		want string
	}{
		"nothing":                    {runtime.Pod{}, ""},
		"an object":                  {object, "api"},
		"an object without one":      {withObject(corev1.PodStatus{}), ""},
		"the newest sandbox with it": {runtime.Pod{Sandboxes: []runtime.Sandbox{{}, {Source: "file"}, {Source: "http"}}}, "file"},
		"a container":                {runtime.Pod{Sandboxes: []runtime.Sandbox{{}}, Containers: []runtime.Container{{}, {Annotations: annotations}}}, "api"},
	} {
		assert.Equal(t, c.want, c.pod.Source(), name)
	}
}

func TestPod_ObjectContainer(t *testing.T) {
	desired := &corev1.Pod{Spec: corev1.PodSpec{InitContainers: []corev1.Container{{Name: "i"}}, Containers: []corev1.Container{{Name: "c"}}}}
	with := func(phase corev1.PodPhase, name string, s corev1.ContainerState) runtime.Pod {
		list := []corev1.ContainerStatus{{Name: "other", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}}}, {Name: name, RestartCount: 2, State: s}}
		if name == "i" {
			return withObject(corev1.PodStatus{Phase: phase, InitContainerStatuses: list})
		}
		return withObject(corev1.PodStatus{Phase: phase, ContainerStatuses: list})
	}
	running := corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
	for name, c := range map[string]struct {
		pod       runtime.Pod
		container string
		want      *runtime.Container
	}{
		"no object":                    {runtime.Pod{UID: "u"}, "c", nil},
		"not in the spec":              {withObject(corev1.PodStatus{}), "other", nil},
		"no status, pending":           {withObject(corev1.PodStatus{Phase: corev1.PodPending}), "c", &runtime.Container{State: runtime.Created}},
		"no status, running":           {withObject(corev1.PodStatus{Phase: corev1.PodRunning}), "c", &runtime.Container{State: runtime.Running}},
		"no status, failed":            {withObject(corev1.PodStatus{Phase: corev1.PodFailed}), "c", &runtime.Container{State: runtime.Exited}},
		"empty status":                 {with(corev1.PodRunning, "c", corev1.ContainerState{}), "c", &runtime.Container{State: runtime.Running, Attempt: 2}},
		"running":                      {with(corev1.PodPending, "c", running), "c", &runtime.Container{State: runtime.Running, Attempt: 2}},
		"a running init container":     {with(corev1.PodPending, "i", running), "i", &runtime.Container{State: runtime.Running, Attempt: 2}},
		"terminated, the pod runs":     {with(corev1.PodRunning, "c", corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}}), "c", &runtime.Container{State: runtime.Exited, Attempt: 2}},
		"waiting, while the pod runs ": {with(corev1.PodRunning, "c", corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{}}), "c", &runtime.Container{State: runtime.Created, Attempt: 2}},
	} {
		t.Run(name, func(t *testing.T) {
			if c.want != nil {
				c.want.ID, c.want.Name = "u/"+c.container, c.container
			}
			assert.Equal(t, c.want, c.pod.ObjectContainer(desired, c.container))
		})
	}
}

func TestSplitObjectID(t *testing.T) {
	uid, container := runtime.SplitObjectID("u/c")
	assert.Equal(t, types.UID("u"), uid)
	assert.Equal(t, "c", container)
	uid, container = runtime.SplitObjectID("u")
	assert.Equal(t, types.UID("u"), uid)
	assert.Empty(t, container)
}
