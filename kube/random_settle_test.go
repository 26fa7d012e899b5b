package kube_test

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/runtime"
)

// settle ends all faults, and checks that the node does what is wanted.
func (c *randomCluster) settle() {
	c.say("settle")
	c.setMode(answers)
	for name, content := range c.files { // an invalid one would leave what an earlier process has not read
		require.NoError(c.t, os.WriteFile(filepath.Join(c.dir, name+".yaml"), []byte(content), 0o600))
	}
	if c.process == nil {
		c.start()
	}
	time.Sleep(10 * time.Minute)
	synctest.Wait()
	if c.collides {
		c.checkClaims()
		return
	}
	want := map[string]string{} // name of pods that run, by UID
	exists := map[string]bool{}
	for _, pod := range c.process.Components().Sources.Pods() {
		exists[string(pod.UID)] = true
	}
	statics := map[string]string{} // UID by name
	for name, pod := range c.mem {
		statics[name] = string(pod.UID)
		if !completes(pod) {
			want[string(pod.UID)] = name
		}
	}
	for name := range c.files {
		for _, pod := range c.process.Components().Sources.Pods() {
			if pod.Name == name+"-"+machineName && podspec.IsStatic(pod) {
				statics[pod.Name], want[string(pod.UID)] = string(pod.UID), pod.Name
			}
		}
		assert.Contains(c.t, statics, name+"-"+machineName)
	}
	for name := range c.apiOf {
		pod := c.fake.Pod("default", name)
		switch {
		case pod == nil || podspec.IsMirror(pod):
		case pod.DeletionTimestamp != nil && len(pod.Finalizers) > 0:
			assert.Zero(c.t, *pod.DeletionGracePeriodSeconds, "%s %s", name, pod.UID)
			defer c.fake.Remove("pods", "default", name)
		case pod.Spec.Containers[0].Image == "":
			assert.Equal(c.t, corev1.PodFailed, pod.Status.Phase, "%s %s", name, pod.UID)
		case pod.DeletionTimestamp != nil:
			assert.Fail(c.t, "not deleted", "%s %s", name, pod.UID)
		case completes(pod):
			assert.Contains(c.t, []corev1.PodPhase{corev1.PodSucceeded, corev1.PodFailed}, pod.Status.Phase, "%s %s", name, pod.UID)
			assert.True(c.t, exists[string(pod.UID)])
		default:
			assert.Equal(c.t, corev1.PodRunning, pod.Status.Phase, "%s %s", name, pod.UID)
			want[string(pod.UID)] = name
		}
	}
	for name, uid := range statics {
		mirror := c.fake.Pod("default", name)
		if assert.NotNil(c.t, mirror, "mirror pod of %s", name) {
			assert.Equal(c.t, uid, mirror.Annotations[podspec.AnnotationMirror], name)
			assert.Nil(c.t, mirror.DeletionTimestamp, name)
			if want[uid] != "" {
				assert.Equal(c.t, corev1.PodRunning, mirror.Status.Phase, name)
			}
		}
	}
	for _, name := range slices.Concat(randomMemory, randomFiles, randomStaticNames) {
		if pod := c.fake.Pod("default", name); pod != nil && podspec.IsMirror(pod) && statics[name] == "" {
			assert.Fail(c.t, "orphaned mirror pod", name)
		}
	}
	c.checkContainers(want)
	for _, uid := range c.process.Components().StatusManager.PodUIDs() {
		assert.True(c.t, exists[string(uid)], "status of %s", uid)
	}
	entries, _ := os.ReadDir(filepath.Join(c.m.Root, "pods"))
	for _, e := range entries {
		assert.True(c.t, exists[e.Name()], "directory of %s", e.Name())
	}
}

// checkClaims checks that one of the pods of a name runs.
func (c *randomCluster) checkClaims() {
	claims := map[string][]string{}
	mayBeDone := map[string]bool{}
	claim := func(name string, uid types.UID, done bool) {
		claims[name] = append(claims[name], string(uid))
		mayBeDone[name] = mayBeDone[name] || done
	}
	for name, pod := range c.mem {
		claim(name, pod.UID, completes(pod))
	}
	for name := range c.files {
		claim(name+"-"+machineName, "file", false)
	}
	for name := range c.apiOf {
		pod := c.fake.Pod("default", name)
		if pod == nil || podspec.IsMirror(pod) {
			continue
		}
		if pod.DeletionTimestamp != nil && len(pod.Finalizers) > 0 {
			assert.Zero(c.t, *pod.DeletionGracePeriodSeconds, "%s %s", name, pod.UID)
			defer c.fake.Remove("pods", "default", name)
		} else {
			assert.Nil(c.t, pod.DeletionTimestamp, "not deleted: %s %s", name, pod.UID)
		}
		claim(name, pod.UID, completes(pod) || pod.Spec.Containers[0].Image == "" || pod.DeletionTimestamp != nil)
	}
	list, err := c.m.Runtime.ListContainers(c.t.Context(), &v1.ListContainersRequest{Filter: &v1.ContainerFilter{
		State: &v1.ContainerStateValue{State: v1.ContainerState_CONTAINER_RUNNING},
	}})
	require.NoError(c.t, err)
	running := map[string]string{}
	for _, ctr := range list.GetContainers() {
		name, uid := ctr.GetLabels()[runtime.LabelPodName], ctr.GetLabels()[runtime.LabelPodUID]
		assert.Empty(c.t, running[name], "two pods of %s", name)
		running[name] = uid
		assert.True(c.t, slices.Contains(claims[name], uid) || slices.Contains(claims[name], "file"), "%s %s is not wanted: %s", name, uid, claims[name])
	}
	for name := range claims {
		if !mayBeDone[name] {
			assert.NotEmpty(c.t, running[name], "no pod of %s runs: %s", name, claims[name])
		}
	}
}

func (c *randomCluster) checkContainers(want map[string]string) {
	list, err := c.m.Runtime.ListContainers(c.t.Context(), &v1.ListContainersRequest{Filter: &v1.ContainerFilter{
		State: &v1.ContainerStateValue{State: v1.ContainerState_CONTAINER_RUNNING},
	}})
	require.NoError(c.t, err)
	running := map[string]string{}
	now := map[string]map[string]int{}
	for _, ctr := range list.GetContainers() {
		uid := ctr.GetLabels()[runtime.LabelPodUID]
		if running[uid] != "" {
			assert.Fail(c.t, "two containers", uid)
		}
		running[uid] = ctr.GetLabels()[runtime.LabelPodName]
		now[uid] = map[string]int{ctr.GetId(): 1}
	}
	assert.Equal(c.t, want, running)
	for uid, before := range c.since {
		if want[uid] != "" && now[uid] != nil {
			assert.True(c.t, maps.Equal(before, now[uid]), "%s was started again", uid)
		}
	}
	c.since = now
}
