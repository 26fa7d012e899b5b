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

func TestPodManager_PassesChangesToWorkers(t *testing.T) {
	p := newPods(t)
	a := newPod("a")
	assert.Equal(t, []string{"create a "}, p.do(podsource.Add, a))
	assert.Equal(t, []string{"change a "}, p.do(podsource.Update, a))
	assert.Equal(t, []string{"change a "}, p.do(podsource.Add, a), "addition of a known pod")
	assert.Equal(t, []string{"reconcile a "}, p.do(podsource.Reconcile, a))
	assert.Equal(t, []string{"change a "}, p.do(podsource.Refresh, a))
	assert.Equal(t, []string{"change a "}, p.do(podsource.Delete, newPod("a", deleting)))
	assert.Equal(t, []string{"remove a"}, p.do(podsource.Remove, a))
	assert.Empty(t, p.do(podsource.Remove, a))
	assert.Equal(t, []string{"create b "}, p.do(podsource.Update, newPod("b")), "update of an unknown pod")
	mirror := newPod("m", func(p *Pod) { p.Annotations = map[string]string{podspec.AnnotationMirror: "x"} })
	assert.Empty(t, p.do(podsource.Add, mirror))
	p.HandlePodSync("a", podworkers.RequeueEvent)
	assert.Equal(t, []string{"wake a RequeueEvent"}, p.w.take())
}

// SL-3: additions are handled in the order of creation, each pod is admitted or rejected
// once, and a rejection becomes a status and an event.
func TestPodManager_AdmitsInOrder(t *testing.T) {
	var admitted, rejected []types.UID
	p := newPods(t, func(c *PodManagerConfig) {
		c.Admitters = []Admitter{podLimit(100), podLimit(2)}
		c.Hooks.Admitted = func(pod *Pod) { admitted = append(admitted, pod.UID) }
		c.Hooks.Rejected = func(pod *Pod, _, _ string) { rejected = append(rejected, pod.UID) }
	})
	young, old, middle := newPod("a", created(30)), newPod("b", created(10)), newPod("c", created(20))
	assert.Equal(t, []string{
		"create b ", "create c ", "refuse a: OutOfpods: 2 pods are here",
	}, p.do(podsource.Add, young, old, middle))
	assert.Equal(t, []types.UID{"b", "c"}, admitted)
	assert.Equal(t, []types.UID{"a"}, rejected)
	require.Len(t, p.events.events, 1)
	assert.Equal(t, "OutOfpods", p.events.events[0].Reason)
	assert.Equal(t, corev1.EventTypeWarning, p.events.events[0].Type)

	assert.Equal(t, []string{"remove b"}, p.do(podsource.Remove, old))
	assert.Empty(t, p.do(podsource.Update, young), "resources are free, but it was rejected")
	assert.Empty(t, p.do(podsource.Reconcile, young))
	assert.Empty(t, p.do(podsource.Add, young))
	set := map[types.UID]struct{}{}
	p.AddDesiredUIDs(set)
	assert.Contains(t, set, types.UID("a"), "rejected pods are desired")

	assert.Equal(t, []string{"change a Failed"}, p.do(podsource.Delete, newPod("a", deleting)), "so that its deletion is reported")
	assert.Equal(t, []string{"remove a"}, p.do(podsource.Remove, young))
}

// SL-3: a rejected pod has no worker. After its removal, a pod of the same UID is a new
// one.
func TestPodManager_RejectedPodIsAddedAfterRemoval(t *testing.T) {
	p := newPods(t, func(c *PodManagerConfig) { c.Admitters = []Admitter{podLimit(1)} })
	p.do(podsource.Add, newPod("a"), newPod("b"))
	assert.Equal(t, []string{"forget b"}, p.do(podsource.Remove, newPod("b")), "its status is forgotten at once")
	p.do(podsource.Remove, newPod("a"))
	assert.Equal(t, []string{"forget b", "create b "}, p.do(podsource.Add, newPod("b")))
}

// SL-3: finished pods do not count for admission.
func TestPodManager_FinishedPodsUseNoResources(t *testing.T) {
	p := newPods(t, func(c *PodManagerConfig) { c.Admitters = []Admitter{podLimit(1)} })
	p.do(podsource.Add, newPod("a"))
	assert.Equal(t, []string{"refuse b: OutOfpods: 1 pods are here"}, p.do(podsource.Add, newPod("b")))
	p.w.states["a"] = podworkers.State{Phase: podworkers.Finished, Idle: true}
	assert.Equal(t, []string{"create c "}, p.do(podsource.Add, newPod("c")))
	assert.Equal(t, []string{"refuse d: OutOfpods: 1 pods are here"}, p.do(podsource.Add, newPod("d")))
}

// SL-3: a pod that is reported as ended does not count, though it has not finished: a scheduler has given its place away.
func TestPodManager_EndedPodsUseNoResources(t *testing.T) {
	for name, tc := range map[string]struct {
		phase podworkers.Phase
		as    corev1.PodPhase // reported
		want  string
	}{
		"is terminated":     {podworkers.Terminating, corev1.PodRunning, "refuse b: OutOfpods: 1 pods are here"},
		"has terminated":    {podworkers.Terminated, corev1.PodRunning, "create b "},
		"has completed":     {podworkers.Syncing, corev1.PodSucceeded, "create b "},
		"ends as completed": {podworkers.Terminating, corev1.PodSucceeded, "create b "},
		"runs":              {podworkers.Syncing, corev1.PodRunning, "refuse b: OutOfpods: 1 pods are here"},
		"is finished":       {podworkers.Finished, corev1.PodFailed, "create b "},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPods(t, func(c *PodManagerConfig) { c.Admitters = []Admitter{podLimit(1)} })
			p.do(podsource.Add, newPod("a"))
			p.w.states["a"] = podworkers.State{Phase: tc.phase}
			p.statuses.saved["a"] = corev1.PodStatus{Phase: tc.as}
			assert.Equal(t, []string{tc.want}, p.do(podsource.Add, newPod("b")))
		})
	}
}

// SL-3: a running pod is adopted, whatever resources the node has.
func TestPodManager_AdoptsRunningPods(t *testing.T) {
	var adopted []types.UID
	var probes adoptedProbes
	p := newPods(t, func(c *PodManagerConfig) {
		c.Admitters = []Admitter{podLimit(0)}
		c.Inspector = running(func(uid types.UID) bool { return uid == "runs" })
		c.Hooks.Adopted = func(pod *Pod) { adopted = append(adopted, pod.UID) }
		c.Probes = &probes
	})
	p.statuses.saved["runs"] = corev1.PodStatus{Phase: corev1.PodRunning, Message: "saved"}
	assert.Equal(t, []string{"create runs ", "refuse new: OutOfpods: 1 pods are here"}, p.do(podsource.Add, newPod("new"), newPod("runs")))
	assert.Equal(t, []types.UID{"runs"}, adopted)
	assert.Equal(t, adoptedProbes{"runs saved"}, probes, "its readiness is taken over")
}

type adoptedProbes []string

func (a *adoptedProbes) Adopt(uid types.UID, st corev1.PodStatus) {
	*a = append(*a, string(uid)+" "+st.Message)
}

// SL-3: a running pod counts for admission for as long as it may be added.
func TestPodManager_ExpectedPodsUseResources(t *testing.T) {
	expected := []*Pod{newPod("later"), newPod("dead")}
	alive := map[types.UID]bool{"later": true}
	newPods := func() *pods {
		return newPods(t, func(c *PodManagerConfig) {
			c.Admitters = []Admitter{podLimit(1)}
			c.Inspector = running(func(uid types.UID) bool { return alive[uid] })
			c.Expected = func() []*Pod { return expected }
		})
	}
	p := newPods()
	assert.Equal(t, []string{"refuse new: OutOfpods: 1 pods are here"}, p.do(podsource.Add, newPod("new")))
	assert.Equal(t, []string{"create later "}, p.do(podsource.Add, newPod("later")), "adopted when it is added")
	assert.Empty(t, p.expected)
	p.w.states["later"] = podworkers.State{Phase: podworkers.Finished, Idle: true}
	assert.Equal(t, []string{"create next "}, p.do(podsource.Add, newPod("next")))

	p = newPods()
	assert.Equal(t, []string{"refuse new: OutOfpods: 1 pods are here"}, p.do(podsource.Add, newPod("new")))
	expected = nil
	assert.Equal(t, []string{"create next "}, p.do(podsource.Add, newPod("next")), "its source does not contain it")

	expected = []*Pod{newPod("later")}
	p = newPods()
	assert.Equal(t, []string{"refuse new: OutOfpods: 1 pods are here"}, p.do(podsource.Add, newPod("new")))
	alive = nil
	assert.Equal(t, []string{"create next "}, p.do(podsource.Add, newPod("next")), "it has stopped")
}

// PW-12, AG-4: a restarted agent does not run a finished pod again, even if its source
// does not have the terminal status.
func TestPodManager_RestoresTerminalStatus(t *testing.T) {
	p := newPods(t, func(c *PodManagerConfig) { c.Admitters = []Admitter{podLimit(0)} })
	p.statuses.saved["done"] = corev1.PodStatus{Phase: corev1.PodSucceeded}
	p.statuses.saved["ran"] = corev1.PodStatus{Phase: corev1.PodRunning}
	done := newPod("done", inPhase(corev1.PodPending))
	assert.Equal(t, []string{
		"create done Succeeded", "create gone ", "refuse ran: OutOfpods: 0 pods are here",
	}, p.do(podsource.Add, done, newPod("gone", deleting), newPod("ran")))
	assert.Equal(t, corev1.PodPending, done.Status.Phase, "the pod of the source is not modified")
}

// AG-4: an eviction that a killed agent has reported is completed, even if the node has
// resources again. It does not count for a new pod of the same UID.
func TestPodManager_ResumesReportedEviction(t *testing.T) {
	condition := corev1.PodCondition{
		Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: corev1.PodReasonTerminationByKubelet, Message: "low on memory",
	}
	saved := func(change func(*corev1.PodCondition)) corev1.PodStatus {
		c := condition
		change(&c)
		return corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{c}}
	}
	same := func(*corev1.PodCondition) {}
	p := newPods(t, func(c *PodManagerConfig) {
		c.Inspector = running(func(uid types.UID) bool { return uid != "dead" })
		c.Admitters = []Admitter{podLimit(1)}
	})
	p.statuses.saved["alive"], p.statuses.saved["dead"] = saved(same), saved(same)
	p.statuses.saved["over"] = saved(same)
	over := p.statuses.saved["over"]
	over.Phase = corev1.PodFailed
	p.statuses.saved["over"] = over
	p.statuses.saved["not"] = saved(func(c *corev1.PodCondition) { c.Status = corev1.ConditionFalse })
	p.statuses.saved["scheduler"] = saved(func(c *corev1.PodCondition) { c.Reason = corev1.PodReasonPreemptionByScheduler })
	assert.Equal(t, []string{"create alive ", "kill alive: Evicted true: low on memory"}, p.do(podsource.Add, newPod("alive")))
	assert.Equal(t, []string{"create dead ", "kill dead: Evicted true: low on memory"}, p.do(podsource.Add, newPod("dead")))
	assert.Equal(t, []string{"create over Failed"}, p.do(podsource.Add, newPod("over")))
	assert.Equal(t, []string{"create not "}, p.do(podsource.Add, newPod("not")))
	assert.Equal(t, []string{"create scheduler "}, p.do(podsource.Add, newPod("scheduler")))
	p.statuses.saved["type"] = saved(func(c *corev1.PodCondition) { c.Type = corev1.PodReady })
	assert.Equal(t, []string{"create type "}, p.do(podsource.Add, newPod("type")))

	for _, uid := range []string{"dead", "not", "scheduler", "type"} {
		p.do(podsource.Remove, newPod(uid))
	}
	assert.Equal(t, []string{"remove alive"}, p.do(podsource.Remove, newPod("alive")))
	p.statuses.saved["alive"] = saved(same)
	assert.Equal(t, []string{"forget alive", "create alive "}, p.do(podsource.Add, newPod("alive")))
}

// PW-10: a pod that is desired again during its termination starts after it, without a
// status and with admission.
func TestPodManager_RecreatedPod(t *testing.T) {
	var recreated []types.UID
	p := newPods(t, func(c *PodManagerConfig) {
		c.Admitters = []Admitter{podLimit(1)}
		c.Hooks.Recreated = func(pod *corev1.Pod) { recreated = append(recreated, pod.UID) }
	})
	a := newPod("a")
	p.do(podsource.Add, a)
	p.do(podsource.Remove, a)
	p.w.states["a"] = podworkers.State{Phase: podworkers.Terminating}
	p.statuses.saved["a"] = corev1.PodStatus{Phase: corev1.PodSucceeded}
	assert.Equal(t, []string{"comes back a"}, p.do(podsource.Add, a))

	delete(p.w.states, "a")
	assert.Empty(t, recreated)
	p.HandlePodRecreations([]types.UID{"a", "stranger"})
	assert.Equal(t, []string{"forget a", "create a "}, p.w.take())
	assert.Equal(t, []types.UID{"a"}, recreated)

	// After it was forgotten it is a new pod too, without the old status.
	p.do(podsource.Remove, a)
	p.statuses.saved["a"] = corev1.PodStatus{Phase: corev1.PodFailed}
	assert.Equal(t, []string{"forget a", "create a "}, p.do(podsource.Add, a))

	// Removed before it is started again, it does not start.
	p.do(podsource.Remove, a)
	p.HandlePodRecreations([]types.UID{"a"})
	assert.Empty(t, p.w.take())
}

// PW-10: a recreated pod is admitted like a new one, even if containers of the previous
// pod still run. A rejected pod is not started with the recreated ones.
func TestPodManager_RecreatedPodIsAdmitted(t *testing.T) {
	p := newPods(t, func(c *PodManagerConfig) {
		c.Admitters = []Admitter{podLimit(1)}
		c.Inspector = running(func(uid types.UID) bool { return uid == "a" })
	})
	p.do(podsource.Add, newPod("a"))
	p.do(podsource.Remove, newPod("a"))
	p.do(podsource.Add, newPod("b"))
	assert.Equal(t, []string{"forget a", "refuse a: OutOfpods: 1 pods are here"}, p.do(podsource.Add, newPod("a")))
	p.do(podsource.Remove, newPod("b"))
	p.HandlePodRecreations([]types.UID{"a"})
	assert.Empty(t, p.w.take(), "it was rejected")
}

// SL-6: a pod that has waited for the cleanup of an earlier one is then handled like all
// others.
func TestPodManager_ReservedPodStarts(t *testing.T) {
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

func TestPodManager_ForgetsRemovedPods(t *testing.T) {
	p := newPods(t)
	p.do(podsource.Add, newPod("a"))
	p.do(podsource.Remove, newPod("a"))
	require.Len(t, p.removed, 1)
	p.pruneRemoved(time.Now().Add(2 * removedTTL))
	assert.Empty(t, p.removed)
}

func TestNewPodManager_ReportsAllErrors(t *testing.T) {
	_, err := NewPodManager(PodManagerConfig{})
	assert.ErrorContains(t, err, "PodManagerConfig.Workers")
	assert.ErrorContains(t, err, "PodManagerConfig.Statuses")
}
