package status_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sublet-dev/agent/runtime"
	"github.com/sublet-dev/agent/status"
)

var (
	reportedAt = time.Unix(5000, 0)
	reportsEnv = status.NodeInfo{HostIPs: []string{"192.0.2.1"}, RunsPods: true}
)

// reported generates the status of a pod whose object has the given status; nil: the runtime
// does not have it.
func reported(p *corev1.Pod, object *corev1.PodStatus, previous corev1.PodStatus, change func(*runtime.Report)) corev1.PodStatus {
	r := runtime.Report{Observed: runtime.Pod{UID: p.UID, ObservedAt: reportedAt}}
	if object != nil {
		r.Observed.Object = &corev1.Pod{Status: *object}
	}
	if change != nil {
		change(&r)
	}
	return status.Generate(p, r, previous, reportsEnv, reportedAt)
}

func runningObject() *corev1.PodStatus {
	return &corev1.PodStatus{
		Phase: corev1.PodRunning, Reason: "Warm", Message: "m",
		Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}, {Type: corev1.ContainersReady, Status: corev1.ConditionTrue}},
		ContainerStatuses: []corev1.ContainerStatus{
			{Name: "c", Ready: true, ContainerID: "vm://1", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.Unix(60, 0)}}},
		},
	}
}

// ST-10: the status is that of the object.
func TestGenerate_Reported(t *testing.T) {
	p := pod("main:c")
	p.Generation = 3
	object := runningObject()
	st := reported(p, object, corev1.PodStatus{}, nil)
	assert.Equal(t, corev1.PodRunning, st.Phase)
	assert.Equal(t, "Warm", st.Reason)
	assert.Equal(t, object.ContainerStatuses, st.ContainerStatuses)
	assert.Empty(t, st.InitContainerStatuses)
	assert.EqualValues(t, 3, st.ObservedGeneration)
	assert.NotEmpty(t, st.QOSClass)
	assert.Equal(t, reportedAt.UTC(), st.StartTime.Time)
	assert.Equal(t, "192.0.2.1", st.HostIP)
	assert.Equal(t, []corev1.HostIP{{IP: "192.0.2.1"}}, st.HostIPs)
	assert.Equal(t, st, reported(p, object, st, nil), "and it stays like that")
	object.Phase = ""
	assert.Equal(t, corev1.PodPending, reported(p, object, corev1.PodStatus{}, nil).Phase)
	assert.Equal(t, corev1.PodPending, reported(p, nil, corev1.PodStatus{}, nil).Phase, "not created yet")
	assert.Empty(t, reported(p, nil, corev1.PodStatus{}, nil).ContainerStatuses)
}

// ST-10: fields of the object are kept, and the forms for one and several addresses agree.
func TestGenerate_ReportedFields(t *testing.T) {
	start := metav1.Unix(77, 0)
	st := reported(pod("main:c"), &corev1.PodStatus{StartTime: &start, PodIP: "10.0.0.1", HostIP: "198.51.100.1"}, corev1.PodStatus{}, nil)
	assert.Equal(t, &start, st.StartTime)
	assert.Equal(t, []corev1.PodIP{{IP: "10.0.0.1"}}, st.PodIPs)
	assert.Equal(t, []corev1.HostIP{{IP: "198.51.100.1"}}, st.HostIPs)
	assert.Equal(t, "198.51.100.1", st.HostIP)
	st = reported(pod("main:c"), &corev1.PodStatus{PodIPs: []corev1.PodIP{{IP: "10.0.0.2"}}, HostIPs: []corev1.HostIP{{IP: "198.51.100.2"}}}, corev1.PodStatus{}, nil)
	assert.Equal(t, "10.0.0.2", st.PodIP)
	assert.Equal(t, "198.51.100.2", st.HostIP)
	st = reported(pod("main:c"), nil, corev1.PodStatus{StartTime: &start}, nil)
	assert.Equal(t, &start, st.StartTime)
	assert.Empty(t, st.PodIPs)
}

// ST-10: a terminal phase is never left, and nothing of it changes.
func TestGenerate_ReportedAfterItsEnd(t *testing.T) {
	previous := corev1.PodStatus{Phase: corev1.PodFailed, Reason: "Evicted", Message: "too large"}
	for name, object := range map[string]*corev1.PodStatus{"running again": runningObject(), "removed": nil} {
		st := reported(pod("main:c"), object, previous, func(r *runtime.Report) {
			r.Failures = map[string]runtime.Failure{"": {Reason: "CreatePodError"}}
			r.Blocked = &runtime.Failure{Reason: "Blocked"}
		})
		assert.Equal(t, corev1.PodFailed, st.Phase, name)
		assert.Equal(t, "Evicted", st.Reason, name)
		assert.Equal(t, "too large", st.Message, name)
	}
}

// ST-10: of a pod that the runtime has lost, what ran is reported as ended.
func TestGenerate_ReportedLost(t *testing.T) {
	for policy, want := range map[string]corev1.PodStatus{
		"Always":    {Phase: corev1.PodPending},
		"OnFailure": {Phase: corev1.PodPending},
		"Never":     {Phase: corev1.PodFailed, Reason: "PodLost", Message: "The pod does not exist in the runtime any more"},
	} {
		for _, phase := range []corev1.PodPhase{corev1.PodRunning, corev1.PodUnknown} {
			p := pod("policy="+policy, "main:c")
			previous := reported(p, runningObject(), corev1.PodStatus{}, nil)
			previous.Phase = phase
			previous.ContainerStatuses = append(previous.ContainerStatuses, corev1.ContainerStatus{Name: "waits", Ready: true})
			st := reported(p, nil, previous, nil)
			assert.Equal(t, want, corev1.PodStatus{Phase: st.Phase, Reason: st.Reason, Message: st.Message}, policy)
			c := st.ContainerStatuses[0]
			require.NotNil(t, c.State.Terminated)
			assert.Equal(t, corev1.ContainerStateTerminated{
				ExitCode: 137, Reason: "ContainerStatusUnknown", Message: "The pod does not exist in the runtime any more",
				StartedAt: metav1.Unix(60, 0), FinishedAt: metav1.NewTime(reportedAt.UTC()), ContainerID: "vm://1",
			}, *c.State.Terminated)
			assert.False(t, c.Ready)
			assert.False(t, *c.Started)
			assert.True(t, st.ContainerStatuses[1].Ready, "it did not run")
			assert.Equal(t, corev1.ConditionFalse, conditionOf(&st, corev1.PodReady).Status)
			assert.Equal(t, "PodLost", conditionOf(&st, corev1.ContainersReady).Reason)
			assert.Equal(t, corev1.ConditionTrue, conditionOf(&st, corev1.PodScheduled).Status)
		}
	}
}

// A pod that was not observed is not lost.
func TestGenerate_ReportedUnobserved(t *testing.T) {
	p := pod("policy=Never", "main:c")
	previous := reported(p, runningObject(), corev1.PodStatus{}, nil)
	st := reported(p, nil, previous, func(r *runtime.Report) { r.Observed.ObservedAt = time.Time{} })
	assert.Equal(t, corev1.PodRunning, st.Phase)
	assert.NotNil(t, st.ContainerStatuses[0].State.Running)
}

// ST-10: the reason of a termination is added when the pod has ended.
func TestGenerate_ReportedTermination(t *testing.T) {
	p := pod("main:c")
	previous := reported(p, runningObject(), corev1.PodStatus{}, nil)
	evicted := &runtime.Termination{Reason: "Evicted", Message: "too large", Evicted: true}
	succeeded := runningObject()
	succeeded.Phase = corev1.PodSucceeded
	for name, c := range map[string]struct {
		object     *corev1.PodStatus
		t          *runtime.Termination
		finished   bool
		wantPhase  corev1.PodPhase
		wantReason string
	}{
		"while it runs":        {runningObject(), evicted, false, corev1.PodRunning, "Warm"},
		"when it has ended":    {succeeded, evicted, false, corev1.PodFailed, "Evicted"},
		"when it is removed":   {nil, evicted, false, corev1.PodFailed, "Evicted"},
		"deleted":              {nil, &runtime.Termination{Deleted: true}, false, corev1.PodFailed, ""},
		"deleted and finished": {nil, &runtime.Termination{Deleted: true}, true, corev1.PodFailed, ""},
		"the result is kept":   {succeeded, &runtime.Termination{Deleted: true}, true, corev1.PodSucceeded, "Warm"},
		"drained":              {nil, &runtime.Termination{Drained: true}, false, corev1.PodRunning, ""},
	} {
		st := reported(p, c.object, previous, func(r *runtime.Report) { r.Termination, r.Finished = c.t, c.finished })
		assert.Equal(t, c.wantPhase, st.Phase, name)
		assert.Equal(t, c.wantReason, st.Reason, name)
		assert.Equal(t, c.t.Evicted, conditionOf(&st, corev1.DisruptionTarget) != nil, name)
	}
	own := runningObject()
	own.Conditions = []corev1.PodCondition{{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: "Spot"}}
	st := reported(p, own, previous, func(r *runtime.Report) { r.Termination = evicted })
	assert.Equal(t, "Spot", conditionOf(&st, corev1.DisruptionTarget).Reason, "the runtime reports one")
}

// ST-10: a pod that was rejected has no containers.
func TestManager_RejectReported(t *testing.T) {
	m, err := status.New(status.Config{NodeInfo: func() status.NodeInfo { return reportsEnv }})
	require.NoError(t, err)
	st := m.Reject(pod("main:c"), "OutOfcpu", "too large")
	assert.Equal(t, corev1.PodFailed, st.Phase)
	assert.Equal(t, "OutOfcpu", st.Reason)
	assert.Empty(t, st.ContainerStatuses)
}

// ST-10: why a pod is not created yet, or must wait.
func TestGenerate_ReportedFailure(t *testing.T) {
	p := pod("main:c")
	fails := func(r *runtime.Report) {
		r.Failures = map[string]runtime.Failure{"": {Reason: "CreatePodError", Message: "no quota"}}
	}
	st := reported(p, nil, corev1.PodStatus{}, fails)
	assert.Equal(t, []any{corev1.PodPending, "CreatePodError", "no quota"}, []any{st.Phase, st.Reason, st.Message})
	retried := reported(p, nil, st, nil)
	assert.Empty(t, retried.Reason+retried.Message, "it is tried again")
	assert.Equal(t, "Warm", reported(p, runningObject(), st, fails).Reason, "it exists")
	st = reported(p, runningObject(), st, func(r *runtime.Report) { r.Blocked = &runtime.Failure{Reason: "Blocked", Message: "no licence"} })
	assert.Equal(t, []any{corev1.PodPending, "Blocked", "no licence"}, []any{st.Phase, st.Reason, st.Message})
}

// ST-10: conditions of the object and of other components are kept, with their times.
func TestGenerate_ReportedConditions(t *testing.T) {
	p := pod("main:c")
	p.Status.Conditions = []corev1.PodCondition{
		{Type: "example.org/Gate", Status: corev1.ConditionFalse}, {Type: "example.org/Ours", Status: corev1.ConditionFalse}, {Type: corev1.PodInitialized, Status: corev1.ConditionFalse},
	}
	object := runningObject()
	past := metav1.Unix(99, 0)
	object.Conditions = append(object.Conditions, corev1.PodCondition{Type: "example.org/Ours", Status: corev1.ConditionTrue, LastTransitionTime: past})
	st := reported(p, object, corev1.PodStatus{}, nil)
	assert.Equal(t, corev1.ConditionTrue, conditionOf(&st, "example.org/Ours").Status)
	assert.Equal(t, past, conditionOf(&st, "example.org/Ours").LastTransitionTime)
	assert.Equal(t, corev1.ConditionFalse, conditionOf(&st, "example.org/Gate").Status)
	assert.Equal(t, reportedAt.UTC(), conditionOf(&st, corev1.PodReady).LastTransitionTime.Time)
	assert.Nil(t, conditionOf(&st, corev1.PodInitialized), "the agent's own are not taken from there")

	p.Status.Conditions[0].Status = corev1.ConditionTrue
	st = reported(p, nil, st, nil)
	assert.Equal(t, corev1.ConditionTrue, conditionOf(&st, "example.org/Gate").Status, "the newest one")
	assert.Len(t, st.Conditions, 5)
}

// ST-10: a readiness gate that is closed makes a ready pod unready.
func TestGenerate_ReportedReadinessGates(t *testing.T) {
	p := pod("main:c")
	p.Spec.ReadinessGates = []corev1.PodReadinessGate{{ConditionType: "example.org/Gate"}}
	st := reported(p, runningObject(), corev1.PodStatus{}, nil)
	assert.Equal(t, corev1.ConditionFalse, conditionOf(&st, corev1.PodReady).Status)
	assert.Equal(t, "ReadinessGatesNotReady", conditionOf(&st, corev1.PodReady).Reason)
	p.Status.Conditions = []corev1.PodCondition{{Type: "example.org/Gate", Status: corev1.ConditionTrue}}
	st = reported(p, runningObject(), st, nil)
	assert.Equal(t, corev1.ConditionTrue, conditionOf(&st, corev1.PodReady).Status)
	object := runningObject()
	object.Conditions[0] = corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionFalse, Reason: "Cold"}
	p.Status.Conditions = nil
	st = reported(p, object, st, nil)
	assert.Equal(t, "Cold", conditionOf(&st, corev1.PodReady).Reason)
}
