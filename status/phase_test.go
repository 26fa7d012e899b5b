package status_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/runtime"
	"github.com/sublet-dev/agent/status"
)

// ST-2: the phase for mixes of kinds, restart policies and rules.
func TestPhase(t *testing.T) {
	type list = []runtime.Container
	crash := map[string]runtime.Failure{"c": {Reason: "CrashLoopBackOff"}}
	for _, tc := range []struct {
		name     string
		pod      *corev1.Pod
		observed list
		fails    map[string]runtime.Failure
		want     corev1.PodPhase
	}{
		{"nothing seen yet", pod("main:c"), nil, nil, corev1.PodPending},
		{"image pull fails", pod("main:c"), nil, map[string]runtime.Failure{"c": {Reason: "ErrImagePull"}}, corev1.PodPending},
		{"created only", pod("main:c"), list{created("c", 0)}, nil, corev1.PodPending},
		{"running", pod("main:c"), list{running("c", 0)}, nil, corev1.PodRunning},
		{"one of two runs, the other was never made", pod("main:c", "main:d"), list{running("c", 0)}, nil, corev1.PodPending},
		{"one runs, one done, Always", pod("main:c", "main:d"), list{running("c", 0), exited("d", 0, 0)}, nil, corev1.PodRunning},
		{"one runs, one failed, Never", pod("policy=Never", "main:c", "main:d"), list{running("c", 0), exited("d", 0, 1)}, nil, corev1.PodRunning},

		{"done, Always", pod("main:c"), list{exited("c", 0, 0)}, nil, corev1.PodRunning},
		{"failed, Always", pod("main:c"), list{exited("c", 0, 1)}, nil, corev1.PodRunning},
		{"crash loop, Always", pod("main:c"), list{exited("c", 3, 1)}, crash, corev1.PodRunning},
		{"done, OnFailure", pod("policy=OnFailure", "main:c"), list{exited("c", 0, 0)}, nil, corev1.PodSucceeded},
		{"failed, OnFailure", pod("policy=OnFailure", "main:c"), list{exited("c", 0, 1)}, nil, corev1.PodRunning},
		{"crash loop, OnFailure", pod("policy=OnFailure", "main:c"), list{exited("c", 2, 1)}, crash, corev1.PodRunning},
		{"done after failures, OnFailure", pod("policy=OnFailure", "main:c"), list{exited("c", 1, 0), exited("c", 0, 1)}, nil, corev1.PodSucceeded},
		{"one done one failed, OnFailure", pod("policy=OnFailure", "main:c", "main:d"), list{exited("c", 0, 0), exited("d", 0, 1)}, nil, corev1.PodRunning},
		{"done, Never", pod("policy=Never", "main:c"), list{exited("c", 0, 0)}, nil, corev1.PodSucceeded},
		{"failed, Never", pod("policy=Never", "main:c"), list{exited("c", 0, 1)}, nil, corev1.PodFailed},
		{"one done one failed, Never", pod("policy=Never", "main:c", "main:d"), list{exited("c", 0, 0), exited("d", 0, 1)}, nil, corev1.PodFailed},

		{"own policy Never of a failed one under Always", pod("main:c/Never"), list{exited("c", 0, 1)}, nil, corev1.PodFailed},
		{"own policy Never of a done one under Always", pod("main:c/Never"), list{exited("c", 0, 0)}, nil, corev1.PodSucceeded},
		{"own policy Always under Never", pod("policy=Never", "main:c/Always"), list{exited("c", 0, 1)}, nil, corev1.PodRunning},
		{"own policy OnFailure under Never, failed", pod("policy=Never", "main:c/OnFailure", "main:d"), list{exited("c", 0, 1), exited("d", 0, 0)}, nil, corev1.PodRunning},
		{"a rule fits", withRule(pod("policy=Never", "main:c/Never"), corev1.ContainerRestartRuleOnExitCodesOpIn, 42), list{exited("c", 0, 42)}, nil, corev1.PodRunning},
		{"no rule fits", withRule(pod("policy=Never", "main:c/Never"), corev1.ContainerRestartRuleOnExitCodesOpIn, 42), list{exited("c", 0, 1)}, nil, corev1.PodFailed},
		{"a negated rule fits", withRule(pod("policy=Never", "main:c/Never"), corev1.ContainerRestartRuleOnExitCodesOpNotIn, 42), list{exited("c", 0, 1)}, nil, corev1.PodRunning},
		{"no negated rule fits", withRule(pod("policy=Never", "main:c/Never"), corev1.ContainerRestartRuleOnExitCodesOpNotIn, 42), list{exited("c", 0, 42)}, nil, corev1.PodFailed},

		{"ended for a restart of all", restartsAll(pod("policy=Never", "main:c", "main:d"), "c"), list{exited("d", 0, 143), exited("c", 0, 42)}, nil, corev1.PodRunning},
		{"one runs again, the other is to", restartsAll(pod("policy=Never", "main:c", "main:d"), "c"), list{round1(running("c", 1)), exited("d", 0, 143), exited("c", 0, 42)}, nil, corev1.PodRunning},
		{"one is done, the other is to run again", restartsAll(pod("policy=Never", "main:c", "main:d"), "c"), list{round1(exited("c", 1, 0)), exited("d", 0, 143), exited("c", 0, 42)}, nil, corev1.PodRunning},
		{"one is done, the other cannot be pulled again", restartsAll(pod("policy=Never", "main:c", "main:d"), "c"), list{round1(exited("c", 1, 0)), exited("d", 0, 143)}, map[string]runtime.Failure{"d": {Reason: "ErrImagePull"}}, corev1.PodRunning},
		{"one is done, the other is made and not started yet", restartsAll(pod("policy=Never", "main:c", "main:d"), "c"), list{round1(created("d", 1)), round1(exited("c", 1, 0)), exited("d", 0, 143), exited("c", 0, 42)}, nil, corev1.PodRunning},
		{"both are done after a restart of all", restartsAll(pod("policy=Never", "main:c", "main:d"), "c"), list{round1(exited("d", 1, 0)), round1(exited("c", 1, 0)), exited("d", 0, 143), exited("c", 0, 42)}, nil, corev1.PodSucceeded},
		{"init ended for a restart of all", restartsAll(pod("policy=Never", "sidecar:s", "init:i", "main:c"), "s"), list{exited("i", 0, 143), exited("s", 0, 42)}, nil, corev1.PodPending},
		{"init is to run again for it", restartsAll(pod("policy=Never", "sidecar:s", "init:i", "main:c"), "s"), list{round1(running("s", 1)), exited("i", 0, 143), exited("s", 0, 42)}, nil, corev1.PodPending},
		{"init failed by itself, with a rule for others", restartsAll(pod("policy=Never", "sidecar:s", "init:i", "main:c"), "s"), list{exited("i", 0, 1), exited("s", 0, 0)}, nil, corev1.PodFailed},

		{"init runs", pod("init:i", "main:c"), list{running("i", 0)}, nil, corev1.PodPending},
		{"init done, main not made", pod("init:i", "main:c"), list{exited("i", 0, 0)}, nil, corev1.PodPending},
		{"init done, main runs", pod("init:i", "main:c"), list{running("c", 0), exited("i", 0, 0)}, nil, corev1.PodRunning},
		{"second init runs", pod("init:i", "init:j", "main:c"), list{running("j", 0), exited("i", 0, 0)}, nil, corev1.PodPending},
		{"init failed, Always", pod("init:i", "main:c"), list{exited("i", 0, 1)}, nil, corev1.PodPending},
		{"init failed, OnFailure", pod("policy=OnFailure", "init:i", "main:c"), list{exited("i", 0, 1)}, nil, corev1.PodPending},
		{"init failed, Never", pod("policy=Never", "init:i", "main:c"), list{exited("i", 0, 1)}, nil, corev1.PodFailed},
		{"init failed, own Never under Always", pod("init:i/Never", "main:c"), list{exited("i", 0, 1)}, nil, corev1.PodFailed},
		{"init crash loop", pod("init:i", "main:c"), list{exited("i", 1, 1)}, map[string]runtime.Failure{"i": {Reason: "CrashLoopBackOff"}}, corev1.PodPending},
		{"init done under Never, all done", pod("policy=Never", "init:i", "main:c"), list{exited("c", 0, 0), exited("i", 0, 0)}, nil, corev1.PodSucceeded},

		{"init lost a process to the OOM killer, Always", pod("init:i", "main:c"), list{oomKilled(exited("i", 0, 0))}, nil, corev1.PodPending},
		{"init lost a process to the OOM killer, OnFailure", pod("policy=OnFailure", "init:i", "main:c"), list{oomKilled(exited("i", 0, 0))}, nil, corev1.PodPending},
		{"init lost a process to the OOM killer, Never", pod("policy=Never", "init:i", "main:c"), list{oomKilled(exited("i", 0, 0))}, nil, corev1.PodFailed},
		{"main lost a process to the OOM killer, Never", pod("policy=Never", "main:c"), list{oomKilled(exited("c", 0, 0))}, nil, corev1.PodSucceeded},
		{"init collected, main runs", pod("init:i", "main:c"), list{running("c", 0)}, nil, corev1.PodRunning},
		{"init collected, main done, Never", pod("policy=Never", "init:i", "main:c"), list{exited("c", 0, 0)}, nil, corev1.PodSucceeded},
		{"init failed, main came after it and is done, Never", pod("policy=Never", "init:i", "main:c"), list{exited("c", 0, 0), exited("i", 0, 1)}, nil, corev1.PodSucceeded},
		{"done, OnFailure, and init runs once more in a new sandbox", pod("policy=OnFailure", "init:i", "main:c"), list{exited("i", 1, 137), inOldSandbox(exited("c", 0, 0)), inOldSandbox(exited("i", 0, 0))}, nil, corev1.PodSucceeded},
		{"failed, OnFailure, and init runs once more in a new sandbox", pod("policy=OnFailure", "init:i", "main:c"), list{exited("i", 1, 137), inOldSandbox(exited("c", 0, 1)), inOldSandbox(exited("i", 0, 0))}, nil, corev1.PodPending},
		{"done, OnFailure, and made once more", pod("policy=OnFailure", "main:c"), list{created("c", 1), exited("c", 0, 0)}, nil, corev1.PodRunning},

		{"sidecar collected, main runs", pod("sidecar:s", "main:c"), list{running("c", 0)}, nil, corev1.PodPending},
		{"sidecar of unknown state, main runs", pod("sidecar:s", "main:c"), list{running("c", 0), unknown("s", 0)}, nil, corev1.PodPending},
		{"sidecar runs, main ended and is done by its own policy", pod("sidecar:s", "main:c/Never"), list{running("s", 0), exited("c", 0, 0)}, nil, corev1.PodRunning},
		{"sidecar runs, main not made", pod("sidecar:s", "main:c"), list{running("s", 0)}, nil, corev1.PodPending},
		{"sidecar and main run", pod("sidecar:s", "main:c"), list{running("c", 0), running("s", 0)}, nil, corev1.PodRunning},
		{"sidecar ended, main runs", pod("sidecar:s", "main:c"), list{running("c", 0), exited("s", 0, 1)}, nil, corev1.PodRunning},
		{"sidecar runs, main done, Never", pod("policy=Never", "sidecar:s", "main:c"), list{running("s", 0), exited("c", 0, 0)}, nil, corev1.PodRunning},
		{"sidecar and main done, Never", pod("policy=Never", "sidecar:s", "main:c"), list{exited("s", 0, 137), exited("c", 0, 0)}, nil, corev1.PodSucceeded},
		{"sidecar never pulled", pod("sidecar:s", "main:c"), nil, map[string]runtime.Failure{"s": {Reason: "ImagePullBackOff"}}, corev1.PodPending},
		{"sidecar before an init that failed, Never", pod("policy=Never", "sidecar:s", "init:i", "main:c"), list{exited("i", 0, 1), exited("s", 0, 0)}, nil, corev1.PodFailed},

		{"a debug container holds the end back", pod("policy=Never", "main:c", "debug:d"), list{running("d", 0), exited("c", 0, 0)}, nil, corev1.PodRunning},
		{"a debug container that ended does not", pod("policy=Never", "main:c", "debug:d"), list{exited("d", 0, 1), exited("c", 0, 0)}, nil, corev1.PodSucceeded},
		{"an unknown container holds the end back", pod("policy=Never", "main:c", "main:d"), list{unknown("d", 0), exited("c", 0, 0)}, nil, corev1.PodPending},
	} {
		t.Run(tc.name, func(t *testing.T) {
			st := status.Generate(tc.pod, runtime.Report{Observed: view(tc.observed...), Failures: tc.fails}, corev1.PodStatus{}, status.NodeInfo{}, testTime)
			assert.Equal(t, tc.want, st.Phase)
			// Planning and telling agree on when a pod is over.
			done, phase := runtime.IsTerminal(tc.pod, view(tc.observed...))
			observed := view(tc.observed...)
			if over := st.Phase == corev1.PodSucceeded || st.Phase == corev1.PodFailed; over || done && !observed.CouldHaveRunningContainers() {
				assert.True(t, done)
				assert.Equal(t, phase, st.Phase)
			}
		})
	}
}

// The phase that statuses call for, also where no container was ever seen by us.
func TestPhase_OfStatuses(t *testing.T) {
	ran := corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
	ended := corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}}
	waits := corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{}}
	of := func(name string, state, last corev1.ContainerState) []corev1.ContainerStatus {
		return []corev1.ContainerStatus{{Name: name, State: state, LastTerminationState: last}}
	}
	for _, tc := range []struct {
		name       string
		pod        *corev1.Pod
		init, main []corev1.ContainerStatus
		final      bool
		want       corev1.PodPhase
	}{
		{"nothing is known", pod("main:c"), nil, nil, false, corev1.PodPending},
		{"nothing is known, and it is over", pod("main:c"), nil, nil, true, corev1.PodFailed},
		{"runs", pod("main:c"), nil, of("c", ran, corev1.ContainerState{}), false, corev1.PodRunning},
		{"one without a state", pod("main:c"), nil, of("c", corev1.ContainerState{}, corev1.ContainerState{}), false, corev1.PodPending},
		{"one of two is over", pod("policy=Never", "main:c", "main:d"), nil, of("c", ended, corev1.ContainerState{}), true, corev1.PodFailed},
		{"done", pod("policy=Never", "main:c"), nil, of("c", ended, corev1.ContainerState{}), true, corev1.PodSucceeded},
		{"nothing is known of the sidecar", pod("sidecar:s", "main:c"), nil, of("c", ran, corev1.ContainerState{}), false, corev1.PodPending},
		{"the sidecar has no state", pod("sidecar:s", "main:c"), of("s", corev1.ContainerState{}, corev1.ContainerState{}), of("c", ran, corev1.ContainerState{}), false, corev1.PodPending},
		{"the sidecar runs on", pod("policy=Never", "sidecar:s", "main:c"), of("s", ran, corev1.ContainerState{}), of("c", ended, corev1.ContainerState{}), false, corev1.PodRunning},
		{"the sidecar ended too", pod("policy=Never", "sidecar:s", "main:c"), of("s", ended, corev1.ContainerState{}), of("c", ended, corev1.ContainerState{}), false, corev1.PodSucceeded},
		{"the sidecar starts anew", pod("policy=Never", "sidecar:s", "main:c"), of("s", waits, ended), of("c", ended, corev1.ContainerState{}), false, corev1.PodSucceeded},
		{"the sidecar has not started, the others have", pod("sidecar:s", "main:c"), of("s", ran, corev1.ContainerState{}), of("c", ran, corev1.ContainerState{}), false, corev1.PodRunning},
		{"the sidecar has not started, and no other", pod("sidecar:s", "main:c"), of("s", ran, corev1.ContainerState{}), nil, false, corev1.PodPending},
		{"the sidecar waits for its image", pod("sidecar:s", "main:c"), of("s", waits, corev1.ContainerState{}), of("c", ran, corev1.ContainerState{}), false, corev1.PodPending},
		{"the sidecar runs and one of two is done", pod("policy=Never", "sidecar:s", "main:c"), of("s", ran, corev1.ContainerState{}), of("c", waits, ended), false, corev1.PodRunning},
		{"it waits", pod("main:c"), nil, of("c", waits, corev1.ContainerState{}), false, corev1.PodPending},
		{"no container is there", pod("policy=Never"), nil, nil, false, corev1.PodPending},
		{"no container is there, and it is over", pod("policy=Never"), nil, nil, true, corev1.PodFailed},
		{"init runs again", pod("init:i", "main:c"), of("i", waits, ended), of("c", waits, ended), false, corev1.PodPending},
		{"nothing is known of init", pod("init:i", "main:c"), nil, of("c", ran, corev1.ContainerState{}), false, corev1.PodPending},
	} {
		t.Run(tc.name, func(t *testing.T) {
			st := corev1.PodStatus{InitContainerStatuses: tc.init, ContainerStatuses: tc.main}
			assert.Equal(t, tc.want, status.Phase(tc.pod, st, tc.final))
		})
	}
}

// ST-5: a listing cannot tell that nothing runs any more.
func TestGenerate_TerminationWithoutInspection(t *testing.T) {
	previous := generate(pod("main:c"), runtime.Report{Observed: view(running("c", 0))})
	r := runtime.Report{Observed: listed(view()), Termination: &runtime.Termination{Deleted: true}}
	assert.Equal(t, corev1.PodRunning, status.Generate(pod("main:c"), r, previous, status.NodeInfo{}, testTime).Phase)
}

func oomKilled(c runtime.Container) runtime.Container {
	c.Reason = runtime.ReasonOOMKilled
	return c
}

func withRule(p *corev1.Pod, op corev1.ContainerRestartRuleOnExitCodesOperator, codes ...int32) *corev1.Pod {
	p.Spec.Containers[0].RestartPolicyRules = []corev1.ContainerRestartRule{{
		Action:    corev1.ContainerRestartRuleActionRestart,
		ExitCodes: &corev1.ContainerRestartRuleOnExitCodes{Operator: op, Values: codes},
	}}
	return p
}

// restartsAll has the container of that name restart all when it ends with 42.
func restartsAll(p *corev1.Pod, name string) *corev1.Pod {
	rules := []corev1.ContainerRestartRule{{
		Action:    corev1.ContainerRestartRuleActionRestartAllContainers,
		ExitCodes: &corev1.ContainerRestartRuleOnExitCodes{Operator: corev1.ContainerRestartRuleOnExitCodesOpIn, Values: []int32{42}},
	}}
	for _, list := range [][]corev1.Container{p.Spec.InitContainers, p.Spec.Containers} {
		for i := range list {
			if list[i].Name == name {
				list[i].RestartPolicyRules = rules
			}
		}
	}
	return p
}

// round1 is a container made after a restart of all.
func round1(c runtime.Container) runtime.Container {
	c.RestartGeneration = 1
	return c
}

// ST-3: a restart of all containers is reported for pods that have a rule for it,
// from the end that asked for it until the first of them is made.
func TestGenerate_AllContainersRestarting(t *testing.T) {
	p := restartsAll(pod("policy=Never", "main:c", "main:d"), "c")
	var previous corev1.PodStatus
	for i, tc := range []struct {
		observed []runtime.Container
		status   corev1.ConditionStatus
		reason   string
	}{
		{nil, corev1.ConditionFalse, ""},
		{[]runtime.Container{running("d", 0), running("c", 0)}, corev1.ConditionFalse, ""},
		{[]runtime.Container{running("d", 0), exited("c", 0, 42)}, corev1.ConditionTrue, "RestartAllContainersStarted"},
		{[]runtime.Container{exited("d", 0, 137), exited("c", 0, 42)}, corev1.ConditionTrue, "RestartAllContainersStarted"},
		{[]runtime.Container{round1(running("d", 1)), exited("d", 0, 137), exited("c", 0, 42)}, corev1.ConditionFalse, ""},
		{[]runtime.Container{round1(running("c", 1)), round1(running("d", 1))}, corev1.ConditionFalse, ""},
		{[]runtime.Container{round1(exited("c", 1, 1)), round1(exited("d", 1, 0))}, corev1.ConditionFalse, "PodFailed"},
	} {
		now := testTime.Add(time.Duration(i) * time.Minute)
		st := status.Generate(p, runtime.Report{Observed: view(tc.observed...)}, previous, status.NodeInfo{}, now)
		c := conditionOf(&st, corev1.AllContainersRestarting)
		require.NotNil(t, c, i)
		assert.Equal(t, tc.status, c.Status, i)
		assert.Equal(t, tc.reason, c.Reason, i)
		if old := conditionOf(&previous, corev1.AllContainersRestarting); old == nil || old.Status != c.Status {
			assert.True(t, c.LastTransitionTime.Time.Equal(now), i)
		}
		previous = st
	}
	st := generate(pod("main:c"), runtime.Report{Observed: view(running("c", 0))})
	assert.Nil(t, conditionOf(&st, corev1.AllContainersRestarting), "no rule, no condition")

	// A listing knows no exit codes, and changes nothing.
	previous = status.Generate(p, runtime.Report{Observed: view(running("d", 0), exited("c", 0, 42))}, corev1.PodStatus{}, status.NodeInfo{}, testTime)
	listed := view(exited("d", 0, 0), exited("c", 0, 0))
	listed.ObservedAt = time.Time{}
	st = status.Generate(p, runtime.Report{Observed: listed}, previous, status.NodeInfo{}, testTime)
	assert.Equal(t, corev1.ConditionTrue, conditionOf(&st, corev1.AllContainersRestarting).Status)
}

// A container that should have run and was never observed is reported as
// lost when its pod is over, unless its turn had not come.
func TestNeverStarted(t *testing.T) {
	over := runtime.Report{Observed: view(), Termination: &runtime.Termination{Deleted: true}, Finished: true}
	for name, tc := range map[string]struct {
		pod      *corev1.Pod
		observed []runtime.Container
		previous corev1.PodStatus
		lost     bool
	}{
		"none has run":                    {pod("main:c"), nil, corev1.PodStatus{}, true},
		"the other one has":               {pod("init:i", "main:c", "main:d"), []runtime.Container{exited("d", 0, 143), exited("i", 0, 0)}, corev1.PodStatus{}, true},
		"init is done":                    {pod("init:i", "main:c"), []runtime.Container{exited("i", 0, 0)}, corev1.PodStatus{}, true},
		"init was done":                   {pod("init:i", "main:c"), nil, generate(pod("init:i", "main:c"), runtime.Report{Observed: view(exited("i", 0, 0))}), true},
		"the other one has, init is gone": {pod("init:i", "main:c", "main:d"), []runtime.Container{exited("d", 0, 143)}, corev1.PodStatus{}, true},
		"init was made and never ran":     {pod("init:i", "main:c"), []runtime.Container{created("i", 0)}, corev1.PodStatus{}, false},
		"it has a policy of its own":      {pod("main:c/Always"), nil, corev1.PodStatus{}, true},
		"init was under way":              {pod("init:i", "main:c"), []runtime.Container{exited("i", 0, 143)}, corev1.PodStatus{}, false},
		"init was to come":                {pod("init:i", "main:c"), nil, corev1.PodStatus{}, false},
		"the last lost a process":         {pod("init:i", "main:c"), []runtime.Container{oomKilled(exited("i", 0, 0))}, corev1.PodStatus{}, false},
		"the sidecar was starting":        {startupProbed(pod("sidecar:s", "main:c")), []runtime.Container{exited("s", 0, 0)}, corev1.PodStatus{}, false},
		"the sidecar had started":         {pod("sidecar:s", "main:c"), []runtime.Container{exited("s", 0, 143)}, generate(pod("sidecar:s", "main:c"), runtime.Report{Observed: view(running("s", 0))}), true},
		"the sidecar had not started":     {startupProbed(pod("sidecar:s", "main:c")), []runtime.Container{exited("s", 0, 143)}, generate(startupProbed(pod("sidecar:s", "main:c")), runtime.Report{Observed: view(running("s", 0))}), false},
		"the main one had its turn":       {pod("init:i", "main:c"), nil, corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{Name: "c", ContainerID: "c-0"}}}, true},
		"only the first was done":         {pod("init:i", "init:j", "main:c"), []runtime.Container{exited("i", 0, 0)}, corev1.PodStatus{}, false},
	} {
		t.Run(name, func(t *testing.T) {
			r := over
			r.Observed = view(tc.observed...)
			st := status.Generate(tc.pod, r, tc.previous, status.NodeInfo{}, testTime)
			assert.Equal(t, corev1.PodFailed, st.Phase)
			c := st.ContainerStatuses[0]
			if !tc.lost {
				require.NotNil(t, c.State.Waiting)
				assert.Equal(t, "PodInitializing", c.State.Waiting.Reason)
				return
			}
			require.NotNil(t, c.State.Terminated)
			assert.Equal(t, "ContainerStatusUnknown", c.State.Terminated.Reason)
			assert.Equal(t, int32(137), c.State.Terminated.ExitCode)
			assert.Empty(t, c.ContainerID)
			assert.False(t, c.Ready)
		})
	}
}

// ST-5: an ending gives the phase only when nothing runs any more.
func TestGenerate_PhaseDuringTermination(t *testing.T) {
	evicted := &runtime.Termination{Reason: "Evicted", Message: "The node was low on resource: memory.", Evicted: true}
	deleted := &runtime.Termination{Deleted: true}
	for _, tc := range []struct {
		name        string
		observed    []runtime.Container
		termination *runtime.Termination
		finished    bool
		want        corev1.PodPhase
		reason      string
	}{
		{"evicted, still running", []runtime.Container{running("c", 0)}, evicted, false, corev1.PodRunning, ""},
		{"evicted, killed", []runtime.Container{exited("c", 0, 137)}, evicted, false, corev1.PodFailed, "Evicted"},
		{"evicted, ended well", []runtime.Container{exited("c", 0, 0)}, evicted, false, corev1.PodFailed, "Evicted"},
		{"evicted before it started", nil, evicted, true, corev1.PodFailed, "Evicted"},
		{"deleted, still running", []runtime.Container{running("c", 0)}, deleted, false, corev1.PodRunning, ""},
		{"deleted, ended well", []runtime.Container{exited("c", 0, 0)}, deleted, false, corev1.PodSucceeded, ""},
		{"deleted, killed", []runtime.Container{exited("c", 0, 143)}, deleted, false, corev1.PodFailed, ""},
		{"deleted before it started", nil, deleted, true, corev1.PodFailed, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			previous := status.Generate(pod("main:c"), runtime.Report{Observed: view(running("c", 0))}, corev1.PodStatus{}, status.NodeInfo{}, testTime)
			if tc.observed == nil {
				previous = corev1.PodStatus{Phase: corev1.PodPending}
			}
			r := runtime.Report{Observed: view(tc.observed...), Termination: tc.termination, Finished: tc.finished}
			st := status.Generate(pod("main:c"), r, previous, status.NodeInfo{}, testTime)
			assert.Equal(t, tc.want, st.Phase)
			assert.Equal(t, tc.reason, st.Reason)
		})
	}
}

// ST-5: a terminal phase never goes back, whatever is seen later.
func TestTerminalPhaseStays(t *testing.T) {
	previous := corev1.PodStatus{Phase: corev1.PodFailed, Reason: "DeadlineExceeded", Message: "too long"}
	st := status.Generate(pod("main:c"), runtime.Report{Observed: view(running("c", 0))}, previous, status.NodeInfo{}, testTime)
	assert.Equal(t, corev1.PodFailed, st.Phase)
	assert.Equal(t, "DeadlineExceeded", st.Reason)
	assert.Equal(t, "too long", st.Message)
}

// PB-4: a container that was stopped for its liveness or startup probe has not succeeded, whatever
// its exit code: it waits to be started again where a failed one would.
func TestPhase_StoppedForItsProbe(t *testing.T) {
	backOff := map[string]runtime.Failure{"c": {Reason: "CrashLoopBackOff"}}
	end := &runtime.Termination{GracePeriod: time.Second}
	for _, tc := range []struct {
		policy      string
		probes      runtime.ProbeResults
		termination *runtime.Termination
		want        corev1.PodPhase
		waiting     bool
	}{
		{"OnFailure", runtime.ProbeResults{Liveness: runtime.ProbeFailure}, nil, corev1.PodRunning, true},
		{"OnFailure", runtime.ProbeResults{Liveness: runtime.ProbeSuccess, Startup: runtime.ProbeFailure}, nil, corev1.PodRunning, true},
		{"OnFailure", runtime.ProbeResults{Liveness: runtime.ProbeSuccess, Readiness: runtime.ProbeFailure}, nil, corev1.PodSucceeded, false},
		{"OnFailure", runtime.ProbeResults{Liveness: runtime.ProbeFailure}, end, corev1.PodSucceeded, false},
		{"Never", runtime.ProbeResults{Liveness: runtime.ProbeFailure}, nil, corev1.PodSucceeded, false},
		{"Always", runtime.ProbeResults{Liveness: runtime.ProbeFailure}, nil, corev1.PodRunning, true},
	} {
		c := exited("c", 0, 0)
		st := generate(pod("policy="+tc.policy, "main:c"), runtime.Report{
			Observed: view(c), Probes: runtime.PodProbeResults{c.ID: tc.probes}, Failures: backOff, Termination: tc.termination,
		})
		assert.Equal(t, tc.want, st.Phase, "%+v", tc)
		assert.Equal(t, tc.waiting, st.ContainerStatuses[0].State.Waiting != nil, "%+v", tc)
		assert.False(t, st.ContainerStatuses[0].Ready)
	}
}

// ST-2, EV-6, SL-12, SD-3: a pod that the node has ended failed, also if its containers exit with 0: it was not
// done. One that was deleted has the result of its containers.
func TestGenerate_EndedByNode(t *testing.T) {
	p := pod("main:c")
	for _, reason := range []string{"Evicted", "Preempting", "Terminated"} {
		over := runtime.Report{
			Observed: view(exited("c", 0, 0)), Finished: true,
			Termination: &runtime.Termination{Reason: reason, Message: "why", Evicted: true},
		}
		st := generate(p, over)
		assert.Equal(t, corev1.PodFailed, st.Phase)
		assert.Equal(t, reason, st.Reason)
		assert.Equal(t, "why", st.Message)
	}
	st := generate(p, runtime.Report{Observed: view(exited("c", 0, 0)), Finished: true, Termination: &runtime.Termination{Deleted: true}})
	assert.Equal(t, corev1.PodSucceeded, st.Phase)
	assert.Empty(t, st.Reason)
}
