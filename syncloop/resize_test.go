package syncloop

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/podsource"
	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/podworkers"
)

// cores is a node with that many CPUs.
type cores string

func (c cores) Admit(pod *Pod, others []*Pod) podspec.AdmitResult {
	used := podspec.Requests(pod)[corev1.ResourceCPU]
	for _, o := range others {
		if o.UID != pod.UID {
			used.Add(podspec.Requests(o)[corev1.ResourceCPU])
		}
	}
	if used.Cmp(resource.MustParse(string(c))) > 0 {
		v := podspec.Rejected("OutOfcpu", "no room for "+used.String())
		v.Insufficient = []podspec.InsufficientResource{{Name: corev1.ResourceCPU, Requested: podspec.Requests(pod)[corev1.ResourceCPU], Capacity: resource.MustParse(string(c))}}
		return v
	}
	return podspec.Admitted()
}

func asking(cpu string) func(*Pod) {
	return func(p *Pod) {
		p.Spec.Containers = []corev1.Container{{Name: "c", Image: "i", Resources: corev1.ResourceRequirements{
			Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)},
		}}}
	}
}

func image(name string) func(*Pod) { return func(p *Pod) { p.Spec.Containers[0].Image = name } }

// has returns the CPU of a pod as passed to the workers, and why it is not more.
func (p *pods) has(t *testing.T, uid types.UID) string {
	t.Helper()
	w := p.get(uid)
	require.NotNil(t, w)
	cpu := w.pod.Spec.Containers[0].Resources.Requests[corev1.ResourceCPU]
	if why := pendingCondition(&w.pod.Status); why != nil {
		return cpu.String() + " " + why.Reason + ": " + why.Message
	}
	return cpu.String()
}

// SL-9: a resize that does not fit is deferred, and all other changes are applied.
func TestResizesWaitForRoom(t *testing.T) {
	p := newPods(t, func(c *PodManagerConfig) { c.Admitters = []Admitter{cores("4")} })
	p.do(podsource.Add, newPod("a", asking("1")), newPod("b", asking("2")))
	asked := newPod("a", asking("3"))
	assert.Equal(t, []string{"change a "}, p.do(podsource.Update, asked))
	assert.Equal(t, "1 Deferred: no room for 5", p.has(t, "a"))
	assert.Empty(t, asked.Status.Conditions, "the source's pod is not written to")
	assert.Equal(t, "3", asked.Spec.Containers[0].Resources.Requests.Cpu().String())
	require.Len(t, p.events.events, 1)
	assert.Equal(t, "ResizeDeferred", p.events.events[0].Reason)

	assert.Equal(t, []string{"change a "}, p.do(podsource.Update, newPod("a", asking("3"), image("j"))))
	assert.Equal(t, "1 Deferred: no room for 5", p.has(t, "a"))
	assert.Equal(t, "j", p.get("a").pod.Spec.Containers[0].Image)
	assert.Len(t, p.events.events, 1, "told once")

	p.do(podsource.Update, newPod("b", asking("3")))
	assert.Equal(t, "1 Deferred: no room for 6", p.has(t, "a"), "as it is now")
	assert.Len(t, p.events.events, 1)
	p.do(podsource.Update, newPod("b", asking("2")))
	p.do(podsource.Update, newPod("a", asking("4"), image("j"), func(p *Pod) { p.Generation = 2 }))
	assert.Equal(t, "1 Deferred: no room for 6", p.has(t, "a"))
	assert.Len(t, p.events.events, 2, "another resize")

	p.do(podsource.Update, newPod("a", asking("5"), image("j")))
	assert.Equal(t, "1 Infeasible: no room for 7", p.has(t, "a"), "not even alone")
	assert.Len(t, p.events.events, 3)
	p.do(podsource.Update, newPod("b", asking("1")))
	assert.Equal(t, "1 Infeasible: no room for 7", p.has(t, "a"), "whatever others have")
	p.do(podsource.Update, newPod("a", asking("500m"), image("j")))
	assert.Equal(t, "500m", p.has(t, "a"), "less is always to be had")
	p.do(podsource.Update, newPod("a", asking("2"), image("j")))
	assert.Equal(t, "2", p.has(t, "a"))
	assert.Empty(t, p.pendingResizes)
}

// never rejects all pods.
type never string

func (n never) Admit(pod *Pod, _ []*Pod) podspec.AdmitResult {
	if cpu := podspec.Requests(pod)[corev1.ResourceCPU]; cpu.CmpInt64(1) > 0 {
		return podspec.Rejected(string(n), "not here")
	}
	return podspec.Admitted()
}

// SL-9: a resize is deferred whatever the reason of the rejection is.
func TestPodManager_DefersResizeForAnyReason(t *testing.T) {
	for _, reason := range []string{"OutOfcpu", "NotEnoughCPU", "NoLicence"} {
		t.Run(reason, func(t *testing.T) {
			p := newPods(t, func(c *PodManagerConfig) { c.Admitters = []Admitter{cores("4"), never(reason)} })
			p.do(podsource.Add, newPod("a", asking("1")))
			p.do(podsource.Update, newPod("a", asking("2")))
			assert.Equal(t, "1 Deferred: not here", p.has(t, "a"))
			p.do(podsource.Update, newPod("a", asking("5")))
			assert.Equal(t, "1 Infeasible: no room for 5", p.has(t, "a"))
		})
	}
}

// SL-9: a deferred resize is retried when another pod changes or is removed, and when the
// another one has finished.
func TestPodManager_RetriesResizes(t *testing.T) {
	for name, freeResources := range map[string]func(p *pods){
		"another is removed":    func(p *pods) { p.do(podsource.Remove, newPod("b", asking("2"))) },
		"another asks for less": func(p *pods) { p.do(podsource.Update, newPod("b", asking("1"))) },
		"another has ended": func(p *pods) {
			p.w.states["b"] = podworkers.State{Phase: podworkers.Finished, Idle: true}
			p.Revisit([]types.UID{"b"})
			assert.Equal(t, []string{"change a "}, p.w.take())
		},
		"another has ended, and the pod has an event": func(p *pods) {
			p.w.states["b"] = podworkers.State{Phase: podworkers.Finished, Idle: true}
			p.HandlePodSync("a", podworkers.RequeueEvent)
			assert.Equal(t, []string{"change a ", "wake a RequeueEvent"}, p.w.take())
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPods(t, func(c *PodManagerConfig) { c.Admitters = []Admitter{cores("4")} })
			p.do(podsource.Add, newPod("a", asking("1")), newPod("b", asking("2")))
			p.do(podsource.Update, newPod("a", asking("3")))
			p.HandlePodSync("a", podworkers.RequeueNow)
			assert.Equal(t, []string{"wake a RequeueNow"}, p.w.take(), "nothing is new")
			p.do(podsource.Add, newPod("z", asking("0")))
			assert.Equal(t, "1 Deferred: no room for 5", p.has(t, "a"))
			freeResources(p)
			assert.Equal(t, "3", p.has(t, "a"))
			assert.Empty(t, p.pendingResizes)
		})
	}
}

// SL-9: a deferred resize is also retried once a minute, because the result of an
// admitter can depend on other things.
func TestPodManager_RetriesResizesPeriodically(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		admit := true
		startTime, attempts := time.Now(), map[time.Duration]bool{}
		p := newPods(t, func(c *PodManagerConfig) {
			c.Admitters = []Admitter{admitterFunc(func() bool { attempts[time.Since(startTime)] = true; return admit })}
		})
		p.do(podsource.Add, newPod("a", asking("1")))
		admit = false
		p.do(podsource.Update, newPod("a", asking("3")))
		for range 90 { // 3 minutes of housekeeping
			time.Sleep(2 * time.Second)
			p.Revisit(nil)
		}
		assert.Equal(t, map[time.Duration]bool{0: true, time.Minute: true, 2 * time.Minute: true, 3 * time.Minute: true}, attempts)
		admit = true
		time.Sleep(time.Minute)
		p.Revisit(nil)
		assert.Equal(t, "3", p.has(t, "a"))
	})
}

// admitterFunc is an Admitter that admits a pod if it returns true.
type admitterFunc func() bool

func (f admitterFunc) Admit(*Pod, []*Pod) podspec.AdmitResult {
	if f() {
		return podspec.Admitted()
	}
	return podspec.Rejected("NotNow", "later")
}

// SL-9: a resize that a previous process has deferred stays deferred until all pods are
// known. The condition in the status that a source returns is ignored.
func TestPodManager_RestoresDeferredResize(t *testing.T) {
	p := newPods(t, func(c *PodManagerConfig) {
		c.Admitters = []Admitter{cores("4")}
		c.Inspector = running(func(types.UID) bool { return true })
	})
	one := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")}
	status := corev1.PodStatus{
		Conditions:        []corev1.PodCondition{{Type: corev1.PodResizePending, Status: corev1.ConditionTrue, Reason: "Deferred", Message: "then"}},
		ContainerStatuses: []corev1.ContainerStatus{{Name: "c", AllocatedResources: one, Resources: &corev1.ResourceRequirements{Requests: one}}},
	}
	p.statuses.saved["a"] = status
	echo := func(pod *Pod) { pod.Status = status }
	p.do(podsource.Add, newPod("a", asking("3"), echo), newPod("b", asking("2"), echo))
	assert.Equal(t, "1 Deferred: no room for 5", p.has(t, "a"), "all pods are known")
	assert.Equal(t, "2", p.has(t, "b"), "nothing of it was held back")
	p.do(podsource.Remove, newPod("b"))
	assert.Equal(t, "3", p.has(t, "a"))
}

// SL-9: a pod whose resize was under way and that has a later one deferred has the resources of the
// former with the next process too, and not the limits that its containers had until then.
func TestPodManager_RestoresResizeUnderWay(t *testing.T) {
	both := func(cpu string) func(*Pod) {
		return func(p *Pod) {
			asking(cpu)(p)
			r := &p.Spec.Containers[0].Resources
			r.Requests[corev1.ResourceMemory] = resource.MustParse("1Gi")
			r.Limits = r.Requests.DeepCopy()
		}
	}
	for name, conditions := range map[string][]corev1.PodCondition{
		"deferred before":    {{Type: corev1.PodResizePending, Status: corev1.ConditionTrue, Reason: "Deferred", Message: "then"}},
		"made while stopped": nil,
	} {
		t.Run(name, func(t *testing.T) {
			had, was := newPod("a", both("1")), newPod("a", both("2")).Spec.Containers[0].Resources
			had.Status = corev1.PodStatus{AllocatedResources: podspec.Requests(had), Conditions: conditions, ContainerStatuses: []corev1.ContainerStatus{
				{Name: "c", AllocatedResources: had.Spec.Containers[0].Resources.Requests, Resources: &was},
			}}
			p := newPods(t, func(c *PodManagerConfig) {
				c.Admitters = []Admitter{cores("4")}
				c.Inspector = running(func(types.UID) bool { return true })
				c.Reported = func() []*Pod { return []*Pod{newPod("z"), had} }
			})
			p.statuses.saved["a"] = had.Status
			p.do(podsource.Add, newPod("a", both("3")), newPod("b", asking("2")))
			now := p.get("a").pod
			assert.NotNil(t, pendingCondition(&now.Status))
			assert.True(t, equality.Semantic.DeepEqual(had.Spec, now.Spec), "%v", now.Spec.Containers[0].Resources)
			assert.Equal(t, corev1.PodQOSGuaranteed, podspec.QOS(now), "it keeps its cgroup")
		})
	}
}

// SL-9: a resize that was made while no process ran is admitted like any other, when all
// pods are known.
func TestPodManager_AdmitsResizeMadeWhileStopped(t *testing.T) {
	for name, tt := range map[string]struct{ requested, other, want string }{
		"it fits":                     {"2", "2", "2"},
		"it does not fit":             {"3", "2", "1 Deferred: no room for 5"},
		"it exceeds the node":         {"5", "2", "1 Infeasible: no room for 7"},
		"less is not checked":         {"500m", "8", "500m"},
		"a full node changes nothing": {"1", "8", "1"},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPods(t, func(c *PodManagerConfig) {
				c.Admitters = []Admitter{cores("4")}
				c.Inspector = running(func(types.UID) bool { return true })
			})
			one := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")}
			p.statuses.saved["a"] = corev1.PodStatus{AllocatedResources: one, ContainerStatuses: []corev1.ContainerStatus{
				{Name: "c", AllocatedResources: one, Resources: &corev1.ResourceRequirements{Requests: one}},
			}}
			p.do(podsource.Add, newPod("a", asking(tt.requested)), newPod("b", asking(tt.other)))
			assert.Equal(t, tt.want, p.has(t, "a"))
			if tt.want == tt.requested {
				assert.Empty(t, p.pendingResizes)
				return
			}
			require.Len(t, p.events.events, 1)
			p.do(podsource.Remove, newPod("b"))
			if tt.requested == "3" {
				assert.Equal(t, "3", p.has(t, "a"), "it fits now")
			}
		})
	}
}

// SL-9: after a boot a pod is admitted with the resources that it had been given, and is not
// rejected because of a resize.
func TestPodManager_StartsWithAllocationAfterBoot(t *testing.T) {
	one := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")}
	for name, tt := range map[string]struct {
		conditions []corev1.PodCondition
		want       string
	}{
		"deferred before": {[]corev1.PodCondition{{Type: corev1.PodResizePending, Status: corev1.ConditionTrue, Reason: "Infeasible", Message: "then"}}, "1 Infeasible: then"},
		"new":             {nil, "1 Infeasible: no room for 5"},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPods(t, func(c *PodManagerConfig) { c.Admitters = []Admitter{cores("4")} })
			p.statuses.saved["a"] = corev1.PodStatus{Phase: corev1.PodRunning, Conditions: tt.conditions, AllocatedResources: one, ContainerStatuses: []corev1.ContainerStatus{
				{Name: "c", AllocatedResources: one, Resources: &corev1.ResourceRequirements{Requests: one}},
			}}
			p.do(podsource.Add, newPod("a", asking("5")))
			require.False(t, p.get("a").rejected)
			assert.Equal(t, tt.want, p.has(t, "a"))
			p.do(podsource.Update, newPod("a", asking("2")))
			assert.Equal(t, "2", p.has(t, "a"))
			assert.Empty(t, p.pendingResizes)
		})
	}
}

// SL-9: pod-level resources are restored as they were in the spec, although the status reports those
// of the whole pod, with its overhead and with what only its containers ask for.
func TestPodManager_RestoresPodLevelResources(t *testing.T) {
	cpu := func(s string) corev1.ResourceList {
		return corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(s)}
	}
	podLevel := func(amount string) func(*Pod) {
		return func(p *Pod) {
			p.Spec.Containers = []corev1.Container{{Name: "c", Image: "i", Resources: corev1.ResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("1Gi")},
			}}}
			p.Spec.Overhead = cpu("250m")
			p.Spec.Resources = nil
			if amount != "" {
				p.Spec.Resources = &corev1.ResourceRequirements{Requests: cpu(amount), Limits: cpu(amount)}
			}
		}
	}
	for name, tt := range map[string]struct {
		before, after string
		pending       bool
	}{
		"deferred before":         {"1", "4", true},
		"made while stopped":      {"1", "4", false},
		"the first of the pod":    {"", "4", false},
		"less while one deferred": {"2", "1", true},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPods(t, func(c *PodManagerConfig) {
				c.Admitters = []Admitter{cores("4")}
				c.Inspector = running(func(types.UID) bool { return true })
			})
			had := newPod("a", podLevel(tt.before))
			st := corev1.PodStatus{AllocatedResources: podspec.Requests(had), ContainerStatuses: []corev1.ContainerStatus{
				{Name: "c", AllocatedResources: had.Spec.Containers[0].Resources.Requests, Resources: &had.Spec.Containers[0].Resources},
			}}
			if had.Spec.Resources != nil {
				st.Resources = &corev1.ResourceRequirements{Requests: podspec.Requests(had), Limits: podspec.Limits(had)}
			}
			if tt.pending {
				st.Conditions = []corev1.PodCondition{{Type: corev1.PodResizePending, Status: corev1.ConditionTrue, Reason: "Deferred", Message: "then"}}
			}
			p.statuses.saved["a"] = st
			allocated, deferred := p.restoreAllocation(newPod("a", podLevel(tt.after)))
			require.NotNil(t, deferred)
			want := newPod("a", podLevel(tt.before))
			assert.True(t, equality.Semantic.DeepEqual(want.Spec, allocated.Spec), "%v, want %v", allocated.Spec, want.Spec)
			assert.Equal(t, podspec.QOS(want), podspec.QOS(allocated))
		})
	}
}

// SL-9: a terminating pod keeps its resources.
func TestPodManager_TerminatingPodIsNotResized(t *testing.T) {
	p := newPods(t, func(c *PodManagerConfig) { c.Admitters = []Admitter{cores("4")} })
	p.do(podsource.Add, newPod("a", asking("1")))
	p.do(podsource.Update, newPod("a", asking("5")))
	p.do(podsource.Delete, newPod("a", asking("5"), deleting))
	assert.Equal(t, "1 Infeasible: no room for 5", p.has(t, "a"))
	assert.Empty(t, p.pendingResizes)
	assert.Equal(t, []string{"remove a"}, p.do(podsource.Remove, newPod("a")))
}

// A pod that has not started yet has no allocation that a change could exceed: it starts
// with what it asks for by then, or is rejected.
func TestPodManager_ReservedPodIsNotResized(t *testing.T) {
	p := newPods(t, func(c *PodManagerConfig) { c.Admitters = []Admitter{cores("4")} })
	require.True(t, p.reserveUID("a"))
	p.do(podsource.Add, newPod("a", asking("1")))
	assert.Empty(t, p.do(podsource.Update, newPod("a", asking("5"))))
	assert.Equal(t, "5", p.has(t, "a"))
	assert.Empty(t, p.events.events)
	require.True(t, p.unreserveUID("a"))
	p.HandlePodRecreations([]types.UID{"a"})
	assert.True(t, p.get("a").rejected)
}

// A pod that is rejected when it is started once more does not wait for its resize any more, for which the loop
// would never be idle.
func TestPodManager_RejectedPodIsNotResized(t *testing.T) {
	admit := true
	p := newPods(t, func(c *PodManagerConfig) { c.Admitters = []Admitter{admitterFunc(func() bool { return admit })} })
	p.do(podsource.Add, newPod("a", asking("1")))
	admit = false
	p.do(podsource.Update, newPod("a", asking("3")))
	assert.False(t, p.Revisit(nil).IsZero(), "it waits")
	p.HandlePodRecreations([]types.UID{"a"})
	require.True(t, p.get("a").rejected)
	assert.Zero(t, p.Revisit(nil))
	assert.Empty(t, p.pendingResizes)
}

// What was reported of all pods is read once for all that are added, however many of them have a resize deferred.
func TestPodManager_ReadsReportedPodsOnce(t *testing.T) {
	reads := 0
	p := newPods(t, func(c *PodManagerConfig) {
		c.Admitters = []Admitter{cores("4")}
		c.Reported = func() []*Pod {
			reads++
			return []*Pod{newPod("a", asking("1")), newPod("b", asking("1"))}
		}
	})
	deferred := []corev1.PodCondition{{Type: corev1.PodResizePending, Status: corev1.ConditionTrue, Reason: "Deferred"}}
	p.statuses.saved["a"], p.statuses.saved["b"] = corev1.PodStatus{Conditions: deferred}, corev1.PodStatus{Conditions: deferred}
	for want := range 2 {
		p.do(podsource.Add, newPod("a", asking("3")), newPod("b", asking("3")))
		assert.Equal(t, want+1, reads)
		assert.Equal(t, "3", p.has(t, "a"))
		assert.Equal(t, "1 Deferred: no room for 6", p.has(t, "b"))
		p.do(podsource.Remove, newPod("a"), newPod("b"))
		p.removed = map[types.UID]time.Time{}
	}
}
