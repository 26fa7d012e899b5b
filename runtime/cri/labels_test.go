package cri

import (
	"maps"
	"strings"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/runtime"
)

// An inspection keeps the labels and annotations that no field has; two thirds of a kilobyte of a pod are others.
func TestPod_LeavesOutWhatFieldsHave(t *testing.T) {
	f := newFake()
	f.addImage(busybox)
	c := f.client(t, Config{Owner: "one"})
	pod := onePod("main")
	pod.Labels = map[string]string{"app": "web"}
	pod.Annotations = map[string]string{podspec.AnnotationSource: "file", podspec.AnnotationStatic: "true"}
	pod.Spec.Containers[0].Ports = []corev1.ContainerPort{{ContainerPort: 80, Protocol: corev1.ProtocolTCP}}
	pod.Spec.Containers[0].Lifecycle = sleepHook(3)
	p := startPod(t, c, pod)
	assert.Equal(t, map[string]string{"app": "web"}, p.Sandboxes[0].Labels)
	assert.Equal(t, map[string]string{podspec.AnnotationStatic: "true"}, p.Sandboxes[0].Annotations)
	assert.Equal(t, "file", p.Sandboxes[0].Source)
	assert.Nil(t, p.Containers[0].Labels)
	assert.Equal(t, map[string]string{runtime.AnnotationPorts: `[{"containerPort":80,"protocol":"TCP"}]`}, p.Containers[0].Annotations)
	assert.Equal(t, int64(3), p.Containers[0].PreStop.Sleep.Seconds)

	foreign, err := f.client(t, Config{Observer: true}).Pod(t.Context(), pod.UID)
	require.NoError(t, err)
	assert.Equal(t, map[string]string{runtime.LabelOwner: "one"}, foreign.Containers[0].Labels, "another's owner is no field")
}

func TestSharedStrings(t *testing.T) {
	pod := &runtime.Pod{UID: "some-uid", Namespace: "some-namespace", Name: "some-name"}
	const owner = "some-owner"
	newMap := func() map[string]string {
		m := map[string]string{
			podspec.AnnotationHash: "some-uid", podspec.AnnotationFirstSeen: "some-namespace", podspec.AnnotationStatic: "some-name",
			runtime.AnnotationPorts: "", "user": "value", "empty": "",
		}
		own := make(map[string]string, len(m))
		for k, v := range m {
			own[strings.Clone(k)] = strings.Clone(v)
		}
		return own
	}
	a, b := newMap(), newMap()
	want := maps.Clone(a)
	a, b = newSharedStrings().rest(a, pod, owner), newSharedStrings().rest(b, pod, owner)
	assert.Equal(t, want, a)
	assert.Nil(t, newSharedStrings().rest(nil, pod, owner))
	keys := map[string]*byte{}
	for k := range a {
		keys[k] = unsafe.StringData(k)
	}
	for k, v := range b {
		isShared := k != "user" && k != "empty"
		assert.Equal(t, isShared, unsafe.StringData(k) == keys[k], "the key %s", k)
		if v != "" {
			assert.Equal(t, isShared, unsafe.StringData(v) == unsafe.StringData(a[k]), "the value of %s", k)
		}
	}
}

// RT-23: the step of a back-off is known to the next process, and counts in this boot only.
func TestPod_BackOffEndsWithTheBoot(t *testing.T) {
	f := newFake()
	f.addImage(busybox)
	after := func(boot string) (step int) {
		c := f.client(t, Config{Node: Node{BootID: boot}})
		inspected, err := c.Pod(t.Context(), "uid-1")
		require.NoError(t, err)
		listed, err := c.Pods(t.Context())
		require.NoError(t, err)
		require.Len(t, listed, 1)
		require.Equal(t, inspected.Containers[0].BackOffStep, listed[0].Containers[0].BackOffStep)
		return inspected.Containers[0].BackOffStep
	}
	plan := startAll(onePod("main"))
	plan[1].BackOffStep = 2
	require.Empty(t, f.client(t, Config{Node: Node{BootID: "first"}}).Apply(t.Context(), onePod("main"), plan, runtime.RunOptions{}).Failures)
	assert.Equal(t, 2, after("first"))
	inspected, err := f.client(t, Config{Node: Node{BootID: "first"}}).Pod(t.Context(), "uid-1")
	require.NoError(t, err)
	assert.Equal(t, runtime.HashResources(&onePod("main").Spec.Containers[0]), inspected.Containers[0].BackOffResources)
	assert.Zero(t, after("second"))
	for _, ct := range f.containers {
		delete(ct.GetAnnotations(), runtime.AnnotationBackOffBoot) // as one of an earlier version
	}
	assert.Equal(t, 2, after("second"))
}
