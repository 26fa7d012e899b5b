package syncloop

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/podsource"
	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/podworkers"
	"github.com/sublet-dev/agent/runtime"
)

// places is an Admitter and a Preemptor of a node with that many places. A pod takes one,
// and the first pods that may be preempted are the victims.
type places struct {
	count  int
	reason string // why any pod is rejected
}

func (n *places) Admit(pod *Pod, others []*Pod) podspec.AdmitResult {
	switch used := n.used(pod, others); {
	case n.reason != "":
		return podspec.Rejected(n.reason, "not now")
	case used >= n.count:
		v := podspec.Rejected("OutOfpods", fmt.Sprintf("%d pods are here", used))
		v.Insufficient = []podspec.InsufficientResource{{Name: corev1.ResourcePods}}
		return v
	}
	return podspec.Admitted()
}

func (n *places) used(pod *Pod, others []*Pod) int {
	return len(slices.DeleteFunc(slices.Clone(others), func(o *Pod) bool { return o.UID == pod.UID }))
}

func (n *places) Victims(pod *Pod, others []*Pod, mayPreempt func(*Pod) bool) ([]*Pod, bool) {
	missing := n.used(pod, others) + 1 - n.count
	var victims []*Pod
	for _, o := range others {
		if len(victims) < missing && podspec.Preempts(pod, o) && mayPreempt(o) {
			victims = append(victims, o)
		}
	}
	return victims, len(victims) == max(missing, 0)
}

func critical(p *Pod) { p.Spec.Priority = new(podspec.SystemCriticalPriority) }

func newPreemptingPods(t *testing.T, count int, change ...func(*PodManagerConfig)) (*pods, *places) {
	t.Helper()
	n := &places{count: count}
	return newPods(t, append(change, func(c *PodManagerConfig) { c.Admitters, c.Preemptor = []Admitter{n}, n })...), n
}

// inState sets the phase of workers.
func (p *pods) inState(phase podworkers.Phase, uids ...types.UID) {
	for _, uid := range uids {
		p.w.states[uid] = podworkers.State{UID: uid, Phase: phase}
	}
}

const waitingFor = "Waiting until other pods have ended: "

// SL-12: pods give way to a critical one, which starts when they have ended.
func TestPodManager_Preempts(t *testing.T) {
	var preempted []string
	p, _ := newPreemptingPods(t, 2, func(c *PodManagerConfig) {
		c.Hooks.Preempted = func(pod, by *Pod, resource corev1.ResourceName) {
			preempted = append(preempted, fmt.Sprint(pod.UID, by.UID, resource))
		}
	})
	p.do(podsource.Add, newPod("a"), newPod("b"))
	p.inState(podworkers.Syncing, "a", "b")
	assert.Equal(t, []string{
		"change a ", "kill a: Preempting true: Preempted in order to admit critical pod", "blocked c: " + waitingFor + "ns/a",
	}, p.do(podsource.Add, newPod("c", critical)))
	assert.Equal(t, []string{"acpods"}, preempted)
	require.Len(t, p.events.events, 1)
	e := p.events.events[0]
	assert.Equal(t, []string{"a", "Preempting", "Warning", "Preempted in order to admit critical pod"}, []string{e.InvolvedObject.Name, e.Reason, e.Type, e.Message})

	p.inState(podworkers.Terminating, "a")
	p.Revisit(nil)
	assert.Empty(t, p.w.take(), "it has not ended")
	assert.Equal(t, []string{"refuse d: OutOfpods: 3 pods are here"}, p.do(podsource.Add, newPod("d")), "nobody else gets what becomes free")
	p.do(podsource.Remove, newPod("d"))
	p.HandlePodRecreations([]types.UID{"c"})
	assert.Empty(t, p.w.take())
	assert.Equal(t, []string{"create c "}, p.finishes("a", preemptedBy()))
	p.inState(podworkers.Syncing, "c")
	p.Revisit(nil)
	assert.Empty(t, p.w.take(), "it started once")
	assert.Equal(t, []string{"change c "}, p.do(podsource.Update, newPod("c", critical)))
	assert.Equal(t, []string{"refuse e: OutOfpods: 2 pods are here"}, p.do(podsource.Add, newPod("e")), "the victim does not count any more")
	assert.Equal(t, []types.UID{"a"}, statusesWithReason(p, podspec.ReasonPreempted), "only one was preempted")
}

func preemptedBy() runtime.Termination {
	return runtime.Termination{Reason: podspec.ReasonPreempted, Message: "Preempted in order to admit critical pod", Evicted: true}
}

func statusesWithReason(p *pods, reason string) (uids []types.UID) {
	for uid, st := range p.statuses.saved {
		if st.Reason == reason {
			uids = append(uids, uid)
		}
	}
	return uids
}

// SL-12: pods are spared that need not, cannot or must not be preempted.
func TestPodManager_DoesNotPreempt(t *testing.T) {
	for name, tc := range map[string]struct {
		pod   *Pod
		state podworkers.Phase
		setUp func(*pods, *places)
		want  []string
	}{
		"for a pod that is not critical": {pod: newPod("c"), want: []string{"refuse c: OutOfpods: 1 pods are here"}},
		"if something else is missing": {
			pod: newPod("c", critical), setUp: func(_ *pods, n *places) { n.reason = "NoLicence" }, want: []string{"refuse c: NoLicence: not now"},
		},
		"if all are not enough": {
			pod: newPod("c", critical), setUp: func(_ *pods, n *places) { n.count = -1 }, want: []string{"refuse c: OutOfpods: 1 pods are here"},
		},
		"without a Preemptor": {
			pod: newPod("c", critical), setUp: func(p *pods, _ *places) { p.cfg.Preemptor = nil }, want: []string{"refuse c: OutOfpods: 1 pods are here"},
		},
		"if a pod terminates already": {
			pod: newPod("c", critical), state: podworkers.Terminating, want: []string{"blocked c: " + waitingFor + "ns/a"},
		},
		"a pod that no source contains yet": {
			pod: newPod("c", critical), setUp: func(p *pods, _ *places) {
				p.set("a", nil)
				p.expected["a"] = struct{}{}
				p.cfg.Expected = func() []*Pod { return []*Pod{newPod("a")} }
				p.cfg.Inspector = running(func(uid types.UID) bool { return uid == "a" })
			},
			want: []string{"refuse c: OutOfpods: 1 pods are here"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			p, n := newPreemptingPods(t, 1)
			p.do(podsource.Add, newPod("a"))
			p.inState(tc.state, "a")
			if tc.setUp != nil {
				tc.setUp(p, n)
			}
			assert.Equal(t, tc.want, p.do(podsource.Add, tc.pod))
		})
	}
}

// SL-12: the reason that remains without the victims is reported: resources are none.
func TestPodManager_ReportsWhatPreemptionCannotMend(t *testing.T) {
	p, n := newPreemptingPods(t, 1)
	p.cfg.Admitters = append(p.cfg.Admitters, &switchAdmitter{reason: "NodePorts"})
	p.cfg.Admitters[1].(*switchAdmitter).reason = ""
	p.do(podsource.Add, newPod("a"))
	p.inState(podworkers.Syncing, "a")
	p.cfg.Admitters[1].(*switchAdmitter).reason = "NodePorts"
	assert.Equal(t, []string{"refuse c: NodePorts: not now"}, p.do(podsource.Add, newPod("c", critical)))
	assert.Equal(t, 1, n.count)
}

// SL-12: several waiting pods are promised different resources, and each starts as soon as
// its own are free, in whatever order that is.
func TestPodManager_SeveralPreemptorsWait(t *testing.T) {
	p, _ := newPreemptingPods(t, 3)
	p.do(podsource.Add, newPod("a"), newPod("b"), newPod("k", critical))
	p.inState(podworkers.Syncing, "a", "b", "k")
	p.do(podsource.Add, newPod("c", critical))
	p.inState(podworkers.Terminating, "a")
	assert.Equal(t, []string{
		"change b ", "kill b: Preempting true: Preempted in order to admit critical pod", "blocked d: " + waitingFor + "ns/a, ns/b",
	}, p.do(podsource.Add, newPod("d", critical)))
	p.inState(podworkers.Terminating, "b")
	assert.Equal(t, []string{"refuse e: OutOfpods: 5 pods are here"}, p.do(podsource.Add, newPod("e", critical)), "only critical ones are left")

	assert.Equal(t, []string{"create c "}, p.finishes("a", preemptedBy()))
	p.inState(podworkers.Syncing, "c")
	assert.Equal(t, []string{"create d "}, p.finishes("b", preemptedBy()))
}

// SL-12: a pod that waits is changed, deleted or removed like any other.
func TestPodManager_WaitingPreemptorChanges(t *testing.T) {
	wait := func(t *testing.T) *pods {
		p, _ := newPreemptingPods(t, 1)
		p.do(podsource.Add, newPod("a"))
		p.inState(podworkers.Syncing, "a")
		p.do(podsource.Add, newPod("c", critical))
		p.inState(podworkers.Terminating, "a")
		return p
	}
	t.Run("changed", func(t *testing.T) {
		p := wait(t)
		assert.Empty(t, p.do(podsource.Update, newPod("c", critical, created(7))))
		assert.Equal(t, []string{"create c "}, p.finishes("a", preemptedBy()))
		assert.Equal(t, int64(7), p.get("c").pod.CreationTimestamp.Unix(), "the newest version starts")
	})
	t.Run("deleted", func(t *testing.T) {
		p := wait(t)
		assert.Equal(t, []string{"create c "}, p.do(podsource.Delete, newPod("c", critical, deleting)), "its worker ends it")
		assert.Empty(t, p.finishes("a", preemptedBy()))
		assert.Equal(t, []string{"remove c"}, p.do(podsource.Remove, newPod("c")))
	})
	t.Run("removed", func(t *testing.T) {
		p := wait(t)
		assert.Equal(t, []string{"remove c"}, p.do(podsource.Remove, newPod("c")), "it has a status: a worker ends it")
		assert.Empty(t, p.finishes("a", preemptedBy()))
		assert.Equal(t, []string{"create d "}, p.do(podsource.Add, newPod("d")), "its place is free")
	})
	t.Run("rejected after all", func(t *testing.T) {
		p := wait(t)
		p.cfg.Admitters[0].(*places).reason = "NoLicence"
		assert.Equal(t, []string{"refuse c: NoLicence: not now"}, p.finishes("a", preemptedBy()))
		assert.Empty(t, p.preemptors)
		p.cfg.Admitters[0].(*places).reason = ""
		assert.Equal(t, []string{"create d "}, p.do(podsource.Add, newPod("d")), "its place is free")
	})
	t.Run("the victim is forgotten", func(t *testing.T) {
		p := wait(t)
		delete(p.w.states, "a")
		p.do(podsource.Remove, newPod("a"))
		p.Revisit(nil)
		assert.Equal(t, []string{"create c "}, p.w.take())
	})
	t.Run("no victim of another", func(t *testing.T) {
		p := wait(t)
		assert.Equal(t, []string{"refuse d: OutOfpods: 2 pods are here"}, p.do(podsource.Add, newPod("d", priority(podspec.SystemCriticalPriority+1))))
	})
}

// SL-12: a static pod that was preempted and starts again is not waited for a second time.
func TestPodManager_VictimStartsBeforeItsPreemptor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, n := newPreemptingPods(t, 2)
		p.do(podsource.Add, newPod("a", static))
		p.do(podsource.Add, newPod("b", static))
		p.inState(podworkers.Terminating, "a", "b")
		p.do(podsource.Add, newPod("c", critical))
		require.Equal(t, []types.UID{"c"}, p.preemptors)
		p.finishes("a", preemptedBy())
		n.count = 4 // another pod has ended
		p.after(20 * time.Second)
		assert.Equal(t, []string{"forget a", "create a "}, p.recreates("a"))
		p.inState(podworkers.Syncing, "a")
		assert.Equal(t, []string{"create c "}, p.finishes("b", preemptedBy()))
	})
}

// SL-12: a rejected static pod preempts as soon as that helps. A victim that is static is
// retried like one that was evicted.
func TestPodManager_StaticPreemption(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, n := newPreemptingPods(t, 1)
		low, high := newPod("low", static, priority(1)), newPod("high", static, priority(2))
		n.reason = "NoLicence"
		p.do(podsource.Add, high)
		n.reason = ""
		assert.Equal(t, []string{"create low "}, p.do(podsource.Add, low))
		p.inState(podworkers.Syncing, "low")
		assert.Equal(t, []string{
			"change low ", "kill low: Preempting true: Preempted in order to admit critical pod", "forget high", "blocked high: " + waitingFor + "ns/low",
		}, p.after(10*time.Second))
		assert.Equal(t, []string{"create high "}, p.finishes("low", preemptedBy()))
		p.inState(podworkers.Syncing, "high")
		require.Len(t, p.Retries(), 1)
		assert.Len(t, p.Problems(), 1)
		assert.Empty(t, p.after(time.Hour), "the node is full")
		p.do(podsource.Remove, high)
		delete(p.w.states, "high")
		assert.Equal(t, []string{"remove low", "comes back low"}, p.after(10*time.Minute))
	})
}

// SL-12: a preemption that a previous process has begun is completed.
func TestPodManager_ResumesPreemption(t *testing.T) {
	p, _ := newPreemptingPods(t, 1, func(c *PodManagerConfig) { c.Inspector = running(func(uid types.UID) bool { return uid == "a" }) })
	p.statuses.saved["a"] = corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{
		Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: corev1.PodReasonTerminationByKubelet, Message: messagePreempted,
	}}}
	p.statuses.saved["c"] = corev1.PodStatus{Phase: corev1.PodPending, Reason: "Blocked", Message: waitingFor + "ns/a"}
	assert.Equal(t, []string{"create a ", "kill a: Preempting true: Preempted in order to admit critical pod"}, p.do(podsource.Add, newPod("a")))
	p.inState(podworkers.Terminating, "a")
	assert.Equal(t, []string{"blocked c: " + waitingFor + "ns/a"}, p.do(podsource.Add, newPod("c", critical)))
	assert.Equal(t, []string{"create c "}, p.finishes("a", preemptedBy()))
}

func priority(n int32) func(*Pod) { return func(p *Pod) { p.Spec.Priority = &n } }
