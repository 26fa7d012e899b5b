package syncloop

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/podsource"
	"github.com/sublet-dev/agent/podworkers"
)

// SL-9: of deferred resizes, that of the pod with the higher priority gets what becomes free, then that of a Guaranteed pod,
// then the one that has waited for longer. So it is also if the other pod has an event first.
func TestPodManager_OrdersResizes(t *testing.T) {
	guaranteed := func(p *Pod) {
		r := &p.Spec.Containers[0].Resources
		r.Requests[corev1.ResourceMemory] = resource.MustParse("1Gi")
		r.Limits = r.Requests.DeepCopy()
	}
	for name, tc := range map[string]struct {
		z      func(*Pod) // of the pod that comes first
		waited time.Duration
	}{
		"priority":   {z: func(p *Pod) { p.Spec.Priority = new(int32(7)) }},
		"guaranteed": {z: guaranteed},
		"longest":    {z: func(*Pod) {}, waited: time.Minute},
	} {
		for event, free := range map[string]func(p *pods){
			"the room becomes free": func(p *pods) { p.do(podsource.Remove, newPod("b", asking("2"))) },
			"an event comes first": func(p *pods) {
				p.w.states["b"] = podworkers.State{Phase: podworkers.Finished, Idle: true}
				p.HandlePodSync("a", podworkers.RequeueEvent)
			},
		} {
			t.Run(name+", "+event, func(t *testing.T) {
				p := newPods(t, func(c *PodManagerConfig) { c.Admitters = []Admitter{cores("4")} })
				p.do(podsource.Add, newPod("b", asking("2")), newPod("a", asking("1")), newPod("z", asking("1"), tc.z))
				p.do(podsource.Update, newPod("a", asking("3")))
				p.do(podsource.Update, newPod("z", asking("3"), tc.z))
				at := time.Now()
				for uid, since := range map[types.UID]time.Time{"a": at, "z": at.Add(-tc.waited)} {
					p.statuses.saved[uid] = corev1.PodStatus{Conditions: []corev1.PodCondition{
						{Type: corev1.PodResizePending, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(since)},
					}}
				}
				free(p)
				assert.Equal(t, "3", p.has(t, "z"))
				assert.Contains(t, p.has(t, "a"), "Deferred")
			})
		}
	}
}

// SL-9: so it is if the other pod is resized before the room that is free was noticed, as in one change
// together with the pod that gives it up.
func TestPodManager_ResizeWaitsForOthers(t *testing.T) {
	for name, priority := range map[string]int32{"higher": 7, "the same": 0} {
		t.Run(name, func(t *testing.T) {
			p := newPods(t, func(c *PodManagerConfig) { c.Admitters = []Admitter{cores("4")} })
			first := func(p *Pod) { p.Spec.Priority = &priority }
			p.do(podsource.Add, newPod("a", asking("1")), newPod("b", asking("2")), newPod("z", asking("1"), first))
			p.do(podsource.Update, newPod("z", asking("2"), first))
			require.Contains(t, p.has(t, "z"), "Deferred")
			p.statuses.saved["z"] = corev1.PodStatus{Conditions: []corev1.PodCondition{
				{Type: corev1.PodResizePending, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(time.Now().Add(-time.Minute))},
			}}
			p.do(podsource.Update, newPod("b", asking("1")), newPod("a", asking("2")))
			assert.Equal(t, "2", p.has(t, "z"))
			assert.Contains(t, p.has(t, "a"), "Deferred")
		})
	}
}

// A resize that may come before those that are deferred does.
func TestPodManager_ResizeDoesNotWaitForLower(t *testing.T) {
	p := newPods(t, func(c *PodManagerConfig) { c.Admitters = []Admitter{cores("4")} })
	first := func(p *Pod) { p.Spec.Priority = new(int32(7)) }
	p.do(podsource.Add, newPod("a", asking("1")), newPod("b", asking("2")), newPod("z", asking("1"), first))
	p.do(podsource.Update, newPod("a", asking("2")))
	p.do(podsource.Update, newPod("b", asking("1")), newPod("z", asking("2"), first))
	assert.Equal(t, "2", p.has(t, "z"))
	assert.Contains(t, p.has(t, "a"), "Deferred")
	assert.Len(t, p.pendingResizes, 1)
}
