package syncloop

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/podsource"
	"github.com/sublet-dev/agent/podworkers"
)

// given is the status of a pod of asking whose container runs with has, and was allocated the rest.
func given(allocated, has string) corev1.PodStatus {
	list := func(cpu string) corev1.ResourceList {
		return corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)}
	}
	return corev1.PodStatus{AllocatedResources: list(allocated), ContainerStatuses: []corev1.ContainerStatus{{
		Name: "c", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}},
		AllocatedResources: list(allocated), Resources: &corev1.ResourceRequirements{Requests: list(has)},
	}}}
}

// SL-9: what a pod is to have no more is given to others when its containers have been resized.
func TestPodManager_GivesWhatOthersHaveNoMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPods(t, func(c *PodManagerConfig) { c.Admitters = []Admitter{cores("4")} })
		p.statuses.saved["a"] = given("3", "3")
		p.do(podsource.Add, newPod("a", asking("3")), newPod("b", asking("1")))
		p.do(podsource.Update, newPod("a", asking("1")))
		assert.Equal(t, "1", p.has(t, "a"))
		p.do(podsource.Update, newPod("b", asking("3")))
		assert.Equal(t, "1 Deferred: no room for 6", p.has(t, "b"), "its containers are not resized yet")
		assert.Equal(t, time.Now(), p.Revisit(nil), "it is tried again soon")

		p.statuses.saved["a"] = given("1", "3")
		p.Revisit(nil)
		assert.Equal(t, "1 Deferred: no room for 6", p.has(t, "b"), "they may not be for long")
		p.do(podsource.Add, newPod("c", asking("1")))
		assert.True(t, p.get("c").rejected)
		p.do(podsource.Remove, newPod("c"))

		p.statuses.saved["a"] = given("1", "2")
		p.do(podsource.Update, newPod("b", asking("2")))
		assert.Equal(t, "2", p.has(t, "b"), "what has become free meanwhile")
		p.do(podsource.Update, newPod("b", asking("3")))
		p.statuses.saved["a"] = given("1", "1")
		assert.Zero(t, p.Revisit(nil))
		assert.Equal(t, "3", p.has(t, "b"))
		assert.Empty(t, p.shrinking)
	})
}

// SL-9: so it is in the next process, and for a pod of which the source wants less since.
func TestPodManager_GivesWhatAdoptedPodsHaveNoMore(t *testing.T) {
	for name, status := range map[string]corev1.PodStatus{"under way": given("1", "3"), "made while stopped": given("3", "3")} {
		t.Run(name, func(t *testing.T) {
			p := newPods(t, func(c *PodManagerConfig) {
				c.Admitters = []Admitter{cores("4")}
				c.Inspector = running(func(types.UID) bool { return true })
			})
			p.statuses.saved["a"], p.statuses.saved["b"] = status, given("1", "1")
			p.do(podsource.Add, newPod("a", asking("1")), newPod("b", asking("1")))
			p.do(podsource.Update, newPod("b", asking("3")))
			assert.Equal(t, "1 Deferred: no room for 6", p.has(t, "b"))
			p.do(podsource.Remove, newPod("a"))
			assert.Equal(t, "3", p.has(t, "b"))
			p.Revisit(nil)
			assert.Empty(t, p.shrinking)
		})
	}
}

// SL-9: when what a pod has no more is found for one deferred resize, the others are tried again too.
func TestPodManager_RetriesAllResizesOnceThereIsRoom(t *testing.T) {
	p := newPods(t, func(c *PodManagerConfig) { c.Admitters = []Admitter{cores("4")} })
	p.statuses.saved["a"] = given("3", "3")
	p.do(podsource.Add, newPod("a", asking("3")), newPod("b", asking("500m")), newPod("c", asking("500m")))
	p.do(podsource.Update, newPod("a", asking("1")))
	p.do(podsource.Update, newPod("b", asking("1")), newPod("c", asking("1")))
	assert.Equal(t, "500m Deferred: no room for 4500m", p.has(t, "b"))
	p.statuses.saved["a"] = given("1", "1")
	p.HandlePodSync("b", podworkers.RequeueEvent)
	assert.Equal(t, "1", p.has(t, "b"))
	assert.Equal(t, "500m Deferred: no room for 4500m", p.has(t, "c"))
	p.Revisit(nil)
	assert.Equal(t, "1", p.has(t, "c"))
}
