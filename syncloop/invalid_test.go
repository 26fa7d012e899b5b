package syncloop

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/podsource"
	"github.com/sublet-dev/agent/podworkers"
)

func invalid(p *Pod) {
	p.Annotations = map[string]string{podsource.AnnotationInvalid: "spec.x: Required value"}
}

// SR-11
func TestPodManager_RejectsInvalidPod(t *testing.T) {
	p := newPods(t)
	assert.Equal(t, []string{"refuse a: InvalidPod: Pod is invalid: spec.x: Required value"}, p.do(podsource.Add, newPod("a", invalid)))
	require.Len(t, p.events.events, 1)
	assert.Equal(t, "InvalidPod", p.events.events[0].Reason)
	assert.Empty(t, p.do(podsource.Update, newPod("a", invalid)))
	assert.Equal(t, []string{"change a Failed"}, p.do(podsource.Delete, newPod("a", invalid, deleting)))
	assert.Equal(t, []string{"create b "}, p.do(podsource.Add, newPod("b", invalid, deleting)), "its worker ends it")

	p.do(podsource.Add, newPod("c"))
	assert.Empty(t, p.do(podsource.Update, newPod("c", invalid)), "the valid version runs")
	assert.Equal(t, []string{"change c "}, p.do(podsource.Delete, newPod("c", invalid, deleting)))
}

// SR-11: an invalid pod that runs has no worker, and its resources count.
func TestPodManager_LeavesRunningInvalidPodAlone(t *testing.T) {
	runs := map[types.UID]bool{}
	start := func() *pods {
		runs["a"] = true
		p := newPods(t, func(c *PodManagerConfig) {
			c.Inspector = running(func(uid types.UID) bool { return runs[uid] })
			c.Admitters = []Admitter{podLimit(1)}
		})
		assert.Empty(t, p.do(podsource.Add, newPod("a", invalid)))
		assert.Empty(t, p.do(podsource.Update, newPod("a", invalid)))
		p.HandlePodSync("a", podworkers.RequeueEvent)
		assert.Equal(t, []string{"wake a RequeueEvent"}, p.w.take())
		assert.Len(t, p.events.events, 1)
		assert.Equal(t, []string{"refuse b: OutOfpods: 1 pods are here"}, p.do(podsource.Add, newPod("b")))
		return p
	}
	p := start()
	assert.Equal(t, []string{"remove a"}, p.do(podsource.Remove, newPod("a", invalid)), "a worker ends it, and reports that")
	assert.NotContains(t, p.AddDesiredUIDs(nil), types.UID("a"))
	assert.Equal(t, []string{"create a "}, start().do(podsource.Update, newPod("a")))
	assert.Equal(t, []string{"create a "}, start().do(podsource.Delete, newPod("a", invalid, deleting)))

	p = start()
	runs["a"] = false
	p.HandlePodSync("a", podworkers.RequeueEvent)
	assert.Equal(t, []string{"refuse a: InvalidPod: Pod is invalid: spec.x: Required value", "wake a RequeueEvent"}, p.w.take())
}
