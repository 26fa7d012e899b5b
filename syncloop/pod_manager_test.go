package syncloop

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/podsource"
	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/podworkers"
)

type pods struct {
	*PodManager
	w        *fakeWorkers
	statuses fakeStatuses
	events   fakeRecorder
}

func newPods(t *testing.T, change ...func(*PodManagerConfig)) *pods {
	t.Helper()
	p := &pods{w: &fakeWorkers{states: map[types.UID]podworkers.State{}}}
	p.statuses = fakeStatuses{&p.w.callLog, map[types.UID]corev1.PodStatus{}}
	cfg := PodManagerConfig{Workers: p.w, Statuses: p.statuses, Recorder: &p.events}
	for _, c := range change {
		c(&cfg)
	}
	var err error
	p.PodManager, err = NewPodManager(cfg)
	require.NoError(t, err)
	return p
}

func (p *pods) do(op podsource.Op, pods ...*Pod) []string {
	p.HandlePodChange(podsource.Change{Op: op, Source: "test", Pods: pods})
	return p.w.take()
}

func TestEachOpReachesTheWorkers(t *testing.T) {
	p := newPods(t)
	a := newPod("a")
	assert.Equal(t, []string{"create a "}, p.do(podsource.Add, a))
	assert.Equal(t, []string{"change a "}, p.do(podsource.Update, a))
	assert.Equal(t, []string{"change a "}, p.do(podsource.Add, a), "an addition of what is known")
	assert.Equal(t, []string{"reconcile a "}, p.do(podsource.Reconcile, a))
	assert.Equal(t, []string{"change a "}, p.do(podsource.Refresh, a))
	assert.Equal(t, []string{"change a "}, p.do(podsource.Delete, newPod("a", deleting)))
	assert.Equal(t, []string{"remove a"}, p.do(podsource.Remove, a))
	assert.Empty(t, p.do(podsource.Remove, a))
	assert.Equal(t, []string{"create b "}, p.do(podsource.Update, newPod("b")), "an update of what is not known")
	mirror := newPod("m", func(p *Pod) { p.Annotations = map[string]string{podspec.AnnotationMirror: "x"} })
	assert.Empty(t, p.do(podsource.Add, mirror))
	p.HandlePodSync("a", podworkers.RequeueEvent)
	assert.Equal(t, []string{"wake a RequeueEvent"}, p.w.take())
}

// SL-3: additions are handled in the order of creation, each admitted or refused
// once; a refusal is told as a status and as an event.
func TestAdmission(t *testing.T) {
	var admitted, refused []types.UID
	p := newPods(t, func(c *PodManagerConfig) {
		c.Admitters = []Admitter{room(100), room(2)}
		c.Hooks.Admitted = func(pod *Pod) { admitted = append(admitted, pod.UID) }
		c.Hooks.Rejected = func(pod *Pod, _, _ string) { refused = append(refused, pod.UID) }
	})
	young, old, middle := newPod("a", created(30)), newPod("b", created(10)), newPod("c", created(20))
	assert.Equal(t, []string{
		"create b ", "create c ", "refuse a: OutOfpods: 2 pods are here",
	}, p.do(podsource.Add, young, old, middle))
	assert.Equal(t, []types.UID{"b", "c"}, admitted)
	assert.Equal(t, []types.UID{"a"}, refused)
	require.Len(t, p.events.events, 1)
	assert.Equal(t, "OutOfpods", p.events.events[0].Reason)
	assert.Equal(t, corev1.EventTypeWarning, p.events.events[0].Type)

	assert.Equal(t, []string{"remove b"}, p.do(podsource.Remove, old))
	assert.Empty(t, p.do(podsource.Update, young), "there is room now, but it was refused")
	assert.Empty(t, p.do(podsource.Reconcile, young))
	assert.Empty(t, p.do(podsource.Add, young))
	set := map[types.UID]struct{}{}
	p.AddDesiredUIDs(set)
	assert.Contains(t, set, types.UID("a"), "refused ones are wanted nonetheless")

	assert.Equal(t, []string{"change a Failed"}, p.do(podsource.Delete, newPod("a", deleting)), "so that its end can be told")
	assert.Equal(t, []string{"remove a"}, p.do(podsource.Remove, young))
}

// SL-3: a refused pod that is removed never had a worker; when it comes back it is
// a new one.
func TestRefusedPodComesBack(t *testing.T) {
	p := newPods(t, func(c *PodManagerConfig) { c.Admitters = []Admitter{room(1)} })
	p.do(podsource.Add, newPod("a"), newPod("b"))
	assert.Equal(t, []string{"forget b"}, p.do(podsource.Remove, newPod("b")), "its status goes at once")
	p.do(podsource.Remove, newPod("a"))
	assert.Equal(t, []string{"forget b", "create b "}, p.do(podsource.Add, newPod("b")))
}

// Pods that have ended take no room, which is made out only when it matters.
func TestFinishedPodsTakeNoRoom(t *testing.T) {
	p := newPods(t, func(c *PodManagerConfig) { c.Admitters = []Admitter{room(1)} })
	p.do(podsource.Add, newPod("a"))
	assert.Equal(t, []string{"refuse b: OutOfpods: 1 pods are here"}, p.do(podsource.Add, newPod("b")))
	p.w.states["a"] = podworkers.State{Phase: podworkers.Finished, Idle: true}
	assert.Equal(t, []string{"create c "}, p.do(podsource.Add, newPod("c")))
	assert.Equal(t, []string{"refuse d: OutOfpods: 1 pods are here"}, p.do(podsource.Add, newPod("d")))
}

// SL-3: what runs already is adopted, whatever room there is.
func TestAdoption(t *testing.T) {
	var adopted []types.UID
	p := newPods(t, func(c *PodManagerConfig) {
		c.Admitters = []Admitter{room(0)}
		c.IsRunning = func(uid types.UID) bool { return uid == "runs" }
		c.Hooks.Adopted = func(pod *Pod) { adopted = append(adopted, pod.UID) }
	})
	assert.Equal(t, []string{"create runs ", "refuse new: OutOfpods: 1 pods are here"}, p.do(podsource.Add, newPod("new"), newPod("runs")))
	assert.Equal(t, []types.UID{"runs"}, adopted)
}

// SL-3: what runs and has not been added yet takes room for as long as it may be.
func TestPods_ExpectedOnesTakeRoom(t *testing.T) {
	expected := []*Pod{newPod("later"), newPod("dead")}
	alive := map[types.UID]bool{"later": true}
	newPods := func() *pods {
		return newPods(t, func(c *PodManagerConfig) {
			c.Admitters = []Admitter{room(1)}
			c.IsRunning = func(uid types.UID) bool { return alive[uid] }
			c.Expected = func() []*Pod { return expected }
		})
	}
	p := newPods()
	assert.Equal(t, []string{"refuse new: OutOfpods: 1 pods are here"}, p.do(podsource.Add, newPod("new")))
	assert.Equal(t, []string{"create later "}, p.do(podsource.Add, newPod("later")), "and is adopted when it comes")
	assert.Empty(t, p.expected)
	p.w.states["later"] = podworkers.State{Phase: podworkers.Finished, Idle: true}
	assert.Equal(t, []string{"create next "}, p.do(podsource.Add, newPod("next")))

	p = newPods()
	assert.Equal(t, []string{"refuse new: OutOfpods: 1 pods are here"}, p.do(podsource.Add, newPod("new")))
	expected = nil
	assert.Equal(t, []string{"create next "}, p.do(podsource.Add, newPod("next")), "its source does not name it")

	expected = []*Pod{newPod("later")}
	p = newPods()
	assert.Equal(t, []string{"refuse new: OutOfpods: 1 pods are here"}, p.do(podsource.Add, newPod("new")))
	alive = nil
	assert.Equal(t, []string{"create next "}, p.do(podsource.Add, newPod("next")), "it has ended")
}

// PW-12, AG-4: a pod that has ended is not run again by an agent that starts anew,
// though its source does not know how it ended.
func TestFormerStatusCounts(t *testing.T) {
	p := newPods(t, func(c *PodManagerConfig) { c.Admitters = []Admitter{room(0)} })
	p.statuses.told["done"] = corev1.PodStatus{Phase: corev1.PodSucceeded}
	p.statuses.told["ran"] = corev1.PodStatus{Phase: corev1.PodRunning}
	done := newPod("done", inPhase(corev1.PodPending))
	assert.Equal(t, []string{
		"create done Succeeded", "create gone ", "refuse ran: OutOfpods: 0 pods are here",
	}, p.do(podsource.Add, done, newPod("gone", deleting), newPod("ran")))
	assert.Equal(t, corev1.PodPending, done.Status.Phase, "the source's pod is not written to")
}

// AG-4: an eviction that was told of comes to its end, though the agent was killed
// in the middle of it and the node has room again; not so for another life of it.
func TestPodManager_ResumesReportedEviction(t *testing.T) {
	condition := corev1.PodCondition{
		Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: corev1.PodReasonTerminationByKubelet, Message: "low on memory",
	}
	told := func(change func(*corev1.PodCondition)) corev1.PodStatus {
		c := condition
		change(&c)
		return corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{c}}
	}
	same := func(*corev1.PodCondition) {}
	p := newPods(t, func(c *PodManagerConfig) {
		c.IsRunning = func(uid types.UID) bool { return uid != "dead" }
		c.Admitters = []Admitter{room(1)}
	})
	p.statuses.told["alive"], p.statuses.told["dead"] = told(same), told(same)
	p.statuses.told["over"] = told(same)
	over := p.statuses.told["over"]
	over.Phase = corev1.PodFailed
	p.statuses.told["over"] = over
	p.statuses.told["not"] = told(func(c *corev1.PodCondition) { c.Status = corev1.ConditionFalse })
	p.statuses.told["scheduler"] = told(func(c *corev1.PodCondition) { c.Reason = corev1.PodReasonPreemptionByScheduler })
	assert.Equal(t, []string{"create alive ", "kill alive: Evicted true: low on memory"}, p.do(podsource.Add, newPod("alive")))
	assert.Equal(t, []string{"create dead ", "kill dead: Evicted true: low on memory"}, p.do(podsource.Add, newPod("dead")))
	assert.Equal(t, []string{"create over Failed"}, p.do(podsource.Add, newPod("over")))
	assert.Equal(t, []string{"create not "}, p.do(podsource.Add, newPod("not")))
	assert.Equal(t, []string{"create scheduler "}, p.do(podsource.Add, newPod("scheduler")))
	p.statuses.told["type"] = told(func(c *corev1.PodCondition) { c.Type = corev1.PodReady })
	assert.Equal(t, []string{"create type "}, p.do(podsource.Add, newPod("type")))

	for _, uid := range []string{"dead", "not", "scheduler", "type"} {
		p.do(podsource.Remove, newPod(uid))
	}
	assert.Equal(t, []string{"remove alive"}, p.do(podsource.Remove, newPod("alive")))
	p.statuses.told["alive"] = told(same)
	assert.Equal(t, []string{"forget alive", "create alive "}, p.do(podsource.Add, newPod("alive")))
}

// PW-10: a UID that comes back while it ends begins anew once it has ended, with a
// clean slate and by admission.
func TestPodComesBack(t *testing.T) {
	p := newPods(t, func(c *PodManagerConfig) { c.Admitters = []Admitter{room(1)} })
	a := newPod("a")
	p.do(podsource.Add, a)
	p.do(podsource.Remove, a)
	p.w.states["a"] = podworkers.State{Phase: podworkers.Terminating}
	p.statuses.told["a"] = corev1.PodStatus{Phase: corev1.PodSucceeded}
	assert.Equal(t, []string{"comes back a"}, p.do(podsource.Add, a))

	delete(p.w.states, "a")
	p.HandlePodRecreations([]types.UID{"a", "stranger"})
	assert.Equal(t, []string{"forget a", "create a "}, p.w.take())

	// After it was forgotten it is new too, and what its former life left is void.
	p.do(podsource.Remove, a)
	p.statuses.told["a"] = corev1.PodStatus{Phase: corev1.PodFailed}
	assert.Equal(t, []string{"forget a", "create a "}, p.do(podsource.Add, a))

	// Removed once more before its turn came, it does not begin.
	p.do(podsource.Remove, a)
	p.HandlePodRecreations([]types.UID{"a"})
	assert.Empty(t, p.w.take())
}

// PW-10: a UID that comes back is admitted as a new pod, though something of its former
// life may be alive yet; a refused one does not begin with those that came back.
func TestPods_ThatComeBackAreAdmitted(t *testing.T) {
	p := newPods(t, func(c *PodManagerConfig) {
		c.Admitters = []Admitter{room(1)}
		c.IsRunning = func(uid types.UID) bool { return uid == "a" }
	})
	p.do(podsource.Add, newPod("a"))
	p.do(podsource.Remove, newPod("a"))
	p.do(podsource.Add, newPod("b"))
	assert.Equal(t, []string{"forget a", "refuse a: OutOfpods: 1 pods are here"}, p.do(podsource.Add, newPod("a")))
	p.do(podsource.Remove, newPod("b"))
	p.HandlePodRecreations([]types.UID{"a"})
	assert.Empty(t, p.w.take(), "it was refused")
}

// SL-6: a pod that was held while what a former one left was removed is one like all
// others from then on.
func TestPods_HeldPodBegins(t *testing.T) {
	p := newPods(t)
	require.True(t, p.reserveUID("a"))
	assert.Empty(t, p.do(podsource.Add, newPod("a")))
	assert.Empty(t, p.do(podsource.Update, newPod("a")))
	require.True(t, p.unreserveUID("a"))
	p.HandlePodRecreations([]types.UID{"a"})
	assert.Equal(t, []string{"create a "}, p.w.take())
	assert.Equal(t, []string{"change a "}, p.do(podsource.Update, newPod("a")))
	assert.Equal(t, []string{"remove a"}, p.do(podsource.Remove, newPod("a")))
}

func TestRemovedPodsAreForgottenInTime(t *testing.T) {
	p := newPods(t)
	p.do(podsource.Add, newPod("a"))
	p.do(podsource.Remove, newPod("a"))
	require.Len(t, p.removed, 1)
	p.forgetRemoved(time.Now().Add(2 * removedAge))
	assert.Empty(t, p.removed)
}

func TestPodsConfigFaults(t *testing.T) {
	_, err := NewPodManager(PodManagerConfig{})
	assert.ErrorContains(t, err, "nil Workers")
	assert.ErrorContains(t, err, "nil Statuses")
}
