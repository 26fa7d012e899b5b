package status_test

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sublet-dev/agent/runtime"
	"github.com/sublet-dev/agent/status"
)

// ST-3: the transition time of a condition is that of its status: from the previous
// status, or from the API if the pod has none yet.
func TestGenerate_TransitionTimes(t *testing.T) {
	earlier, long := metav1.NewTime(testTime.Add(-time.Hour)), metav1.NewTime(testTime.Add(-2*time.Hour))
	list := func(status corev1.ConditionStatus, since metav1.Time) []corev1.PodCondition {
		return []corev1.PodCondition{{Type: corev1.PodScheduled, Status: status, LastTransitionTime: since}}
	}
	now := metav1.NewTime(testTime)
	for name, tc := range map[string]struct {
		reported, api []corev1.PodCondition
		want          metav1.Time
	}{
		"never told":                         {nil, nil, now},
		"told":                               {list(corev1.ConditionTrue, earlier), nil, earlier},
		"told as False":                      {list(corev1.ConditionFalse, earlier), nil, now},
		"told without a time":                {list(corev1.ConditionTrue, metav1.Time{}), nil, now},
		"in the API":                         {nil, list(corev1.ConditionTrue, long), long},
		"told, whatever the API says":        {list(corev1.ConditionTrue, earlier), list(corev1.ConditionTrue, long), earlier},
		"told as False, True in the API":     {list(corev1.ConditionFalse, earlier), list(corev1.ConditionTrue, long), now},
		"told without a time, as in the API": {list(corev1.ConditionTrue, metav1.Time{}), list(corev1.ConditionTrue, long), now},
	} {
		t.Run(name, func(t *testing.T) {
			p := pod("main:c")
			p.Status.Conditions = tc.api
			st := status.Generate(p, runtime.Report{Observed: view()}, corev1.PodStatus{Conditions: tc.reported}, status.NodeInfo{}, testTime)
			assert.Equal(t, tc.want, conditionOf(&st, corev1.PodScheduled).LastTransitionTime)
		})
	}
}

// A sidecar counts for readiness like a regular container, an init container does
// not.
func TestGenerate_SidecarsAndReadiness(t *testing.T) {
	p := pod("sidecar:s", "init:i", "main:c")
	p.Spec.InitContainers[0].ReadinessProbe = &corev1.Probe{}
	r := runtime.Report{Observed: view(running("c", 0), exited("i", 0, 0), running("s", 0))}
	for result, want := range map[runtime.ProbeResult]corev1.ConditionStatus{
		runtime.ProbeSuccess: corev1.ConditionTrue, runtime.ProbeFailure: corev1.ConditionFalse, runtime.ProbeUnknown: corev1.ConditionFalse,
	} {
		r.Probes = runtime.PodProbeResults{"s-0": {Startup: runtime.ProbeSuccess, Readiness: result}}
		st := generate(p, r)
		c := conditionOf(&st, corev1.ContainersReady)
		assert.Equal(t, want, c.Status, "%v", result)
		if want == corev1.ConditionFalse {
			assert.Equal(t, "ContainersNotReady", c.Reason)
			assert.Equal(t, "containers with unready status: [s]", c.Message)
		}
	}
}

// A termination hides a restart of all containers that is in progress.
func TestGenerate_RestartOfAllOfAPodThatEnds(t *testing.T) {
	p := restartsAll(pod("policy=Never", "main:c", "main:d"), "c")
	r := runtime.Report{Observed: view(running("d", 0), exited("c", 0, 42))}
	st := generate(p, r)
	require.Equal(t, corev1.ConditionTrue, conditionOf(&st, corev1.AllContainersRestarting).Status)
	r.Termination = &runtime.Termination{Deleted: true}
	st = generate(p, r)
	assert.Equal(t, corev1.ConditionFalse, conditionOf(&st, corev1.AllContainersRestarting).Status)
}

// PodResizePending is kept with its reason as long as the pod object has it.
func TestGenerate_ResizePending(t *testing.T) {
	for status, want := range map[corev1.ConditionStatus]bool{corev1.ConditionTrue: true, corev1.ConditionFalse: false} {
		p := pod("main:c")
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodResizePending, Status: status, Reason: "Deferred", Message: "no room"}}
		st := generate(p, runtime.Report{Observed: view(running("c", 0))})
		c := conditionOf(&st, corev1.PodResizePending)
		require.Equal(t, want, c != nil)
		if want {
			assert.Equal(t, "Deferred", c.Reason)
			assert.Equal(t, "no room", c.Message)
		}
	}
	for reason, want := range map[string]bool{corev1.PodReasonDeferred: true, corev1.PodReasonInfeasible: true, "FailedMount": false} {
		st := generate(pod("main:c"), runtime.Report{
			Observed: view(running("c", 0)), Failures: map[string]runtime.Failure{"": {Reason: reason, Message: "why"}},
		})
		c := conditionOf(&st, corev1.PodResizePending)
		assert.Equal(t, want, c != nil, reason)
	}
	over := pod("policy=Never", "main:c")
	over.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodResizePending, Status: corev1.ConditionTrue, Reason: "Deferred"}}
	st := generate(over, runtime.Report{Observed: view(exited("c", 0, 0))})
	assert.Nil(t, conditionOf(&st, corev1.PodResizePending), "nothing of a pod that is over changes")
}

// ST-3: a termination by the node is reported, and stays.
func TestGenerate_Disruption(t *testing.T) {
	p := pod("main:c")
	evicted := &runtime.Termination{Reason: "Evicted", Message: "low on memory", Evicted: true}
	st := generate(p, runtime.Report{Observed: view(running("c", 0)), Termination: evicted})
	c := conditionOf(&st, corev1.DisruptionTarget)
	require.NotNil(t, c)
	assert.Equal(t, corev1.ConditionTrue, c.Status)
	assert.Equal(t, "TerminationByKubelet", c.Reason)
	assert.Equal(t, "low on memory", c.Message)

	st = generateAfter(st, p, runtime.Report{Observed: view(exited("c", 0, 143)), Termination: &runtime.Termination{Deleted: true}})
	require.NotNil(t, conditionOf(&st, corev1.DisruptionTarget))
	assert.Equal(t, "low on memory", conditionOf(&st, corev1.DisruptionTarget).Message)

	st = generate(p, runtime.Report{Observed: view(running("c", 0)), Termination: &runtime.Termination{Deleted: true}})
	assert.Nil(t, conditionOf(&st, corev1.DisruptionTarget))
	overLimit := &runtime.Termination{Reason: "Evicted", Message: "too much", Evicted: true, OverLimit: true}
	st = generate(p, runtime.Report{Observed: view(exited("c", 0, 137)), Termination: overLimit, Finished: true})
	assert.Nil(t, conditionOf(&st, corev1.DisruptionTarget), "a pod above a limit of its own is not disrupted")
	assert.Equal(t, corev1.PodFailed, st.Phase)
	assert.Equal(t, "Evicted", st.Reason)
	p.Status.Conditions = []corev1.PodCondition{{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: "PreemptionByScheduler"}}
	st = generate(p, runtime.Report{Observed: view(running("c", 0))})
	assert.Equal(t, "PreemptionByScheduler", conditionOf(&st, corev1.DisruptionTarget).Reason, "another's is kept")
	p.Status.Conditions[0].Status, p.Status.Conditions[0].Reason = corev1.ConditionFalse, ""
	st = generateAfter(st, p, runtime.Report{Observed: view(running("c", 0))})
	assert.Equal(t, corev1.ConditionFalse, conditionOf(&st, corev1.DisruptionTarget).Status, "who has set it may reset it")
	st = generateAfter(st, p, runtime.Report{Observed: view(running("c", 0)), Termination: evicted})
	st = generateAfter(st, p, runtime.Report{Observed: view(exited("c", 0, 143)), Termination: &runtime.Termination{Deleted: true}})
	assert.Equal(t, "TerminationByKubelet", conditionOf(&st, corev1.DisruptionTarget).Reason, "but not that of the node")
}

// ST-3: a resize is under way while a container runs with other resources.
func TestGenerate_ResizeInProgress(t *testing.T) {
	p := pod("sidecar:s", "main:c")
	p.Spec.InitContainers[0].Resources.Limits = amounts("cpu", "1")
	p.Spec.Containers[0].Resources.Limits = amounts("cpu", "1")
	sized := func(c runtime.Container, limit string) runtime.Container {
		c.Resources = &runtime.Resources{CPURequest: new(resource.MustParse("1")), CPULimit: new(resource.MustParse(limit))}
		return c
	}
	same, less, side := sized(running("c", 0), "1"), sized(running("c", 0), "500m"), sized(running("s", 0), "1")
	failed := map[string]runtime.Failure{"c": {Reason: "ResizeError", Message: "cgroup is busy", Err: errors.New("busy")}}
	waits := map[string]runtime.Failure{"c": {Reason: "CrashLoopBackOff", Message: "back-off"}}
	for _, tc := range []struct {
		name     string
		observed runtime.Pod
		fail     map[string]runtime.Failure
		want     bool
		message  string
	}{
		{"as asked for", view(same, side), nil, false, ""},
		{"less", view(less, side), nil, true, ""},
		{"a sidecar has less", view(same, sized(running("s", 0), "500m")), nil, true, ""},
		{"less, and it failed", view(less, side), failed, true, "cgroup is busy"},
		{"less, and it waits", view(less, side), waits, true, ""},
		{"less, and it has ended", view(sized(exited("c", 0, 3), "500m"), side), nil, false, ""},
		{"not there", view(side), nil, false, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			st := generate(p, runtime.Report{Observed: tc.observed, Failures: tc.fail})
			c := conditionOf(&st, corev1.PodResizeInProgress)
			require.Equal(t, tc.want, c != nil)
			if !tc.want {
				return
			}
			assert.Equal(t, tc.message, c.Message)
			assert.Equal(t, tc.message != "", c.Reason == corev1.PodReasonError)
			st = generateAfter(st, p, runtime.Report{Observed: listed(tc.observed)})
			assert.NotNil(t, conditionOf(&st, corev1.PodResizeInProgress), "a listing does not tell otherwise")
		})
	}
}

// ST-3: what else decides conditions.
func TestGenerate_ConditionsOfOddPods(t *testing.T) {
	st := generate(pod("init:i"), runtime.Report{Observed: view()})
	assert.Equal(t, "UnknownContainerStatuses", conditionOf(&st, corev1.ContainersReady).Reason)

	p := pod("sidecar:s", "main:c")
	p.Spec.InitContainers[0].ReadinessProbe = &corev1.Probe{}
	st = generate(p, runtime.Report{Observed: view(running("s", 0))})
	assert.Equal(t, corev1.ConditionTrue, conditionOf(&st, corev1.PodInitialized).Status, "a sidecar has to start, not to be ready")

	done := restartsAll(pod("policy=Never", "main:c"), "c")
	st = generate(done, runtime.Report{Observed: view(exited("c", 0, 0))})
	c := conditionOf(&st, corev1.AllContainersRestarting)
	assert.Equal(t, corev1.ConditionFalse, c.Status)
	assert.Equal(t, "PodCompleted", c.Reason)
	st = generate(done, runtime.Report{Observed: listed(view(running("c", 0)))})
	assert.Equal(t, corev1.ConditionFalse, conditionOf(&st, corev1.AllContainersRestarting).Status)
}
