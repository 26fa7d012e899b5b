package agenttest

import (
	"testing"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"
)

func withContainer(phase corev1.PodPhase, restarts int32, state, last corev1.ContainerState) *corev1.PodStatus {
	return &corev1.PodStatus{Phase: phase, ContainerStatuses: []corev1.ContainerStatus{{
		Name: "main", RestartCount: restarts, State: state, LastTerminationState: last, Ready: state.Running != nil,
	}}}
}

func TestStatusProblems(t *testing.T) {
	none := corev1.ContainerState{}
	running := corev1.ContainerState{Running: new(corev1.ContainerStateRunning)}
	exited := func(code int32) corev1.ContainerState {
		return corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: code, Reason: "Error"}}
	}
	ready := withContainer(corev1.PodRunning, 0, exited(1), none)
	ready.ContainerStatuses[0].Ready = true
	initRuns := withContainer(corev1.PodFailed, 0, exited(1), none)
	initRuns.InitContainerStatuses = []corev1.ContainerStatus{{Name: "init", State: running}}
	for name, tt := range map[string]struct {
		previous, now *corev1.PodStatus
		want          string // "": possible
		excused       bool   // if the runtime lies
	}{
		"exits":                         {withContainer(corev1.PodRunning, 0, running, none), withContainer(corev1.PodFailed, 0, exited(1), none), "", false},
		"restarts with its exit code":   {withContainer(corev1.PodRunning, 0, exited(1), none), withContainer(corev1.PodRunning, 1, running, exited(1)), "", false},
		"keeps its exit code":           {withContainer(corev1.PodRunning, 0, exited(1), none), withContainer(corev1.PodRunning, 0, none, exited(1)), "", false},
		"final phase is left":           {withContainer(corev1.PodSucceeded, 0, exited(0), none), withContainer(corev1.PodRunning, 0, exited(0), none), "Running after Succeeded", false},
		"restart count decreases":       {withContainer(corev1.PodRunning, 3, running, none), withContainer(corev1.PodRunning, 2, running, none), "restarts of main go back from 3 to 2", false},
		"ready after a failure":         {withContainer(corev1.PodRunning, 0, running, none), ready, "main is ready and does not run", false},
		"exit code is lost":             {withContainer(corev1.PodRunning, 0, exited(1), none), withContainer(corev1.PodRunning, 0, running, none), "the exit code of main is lost", true},
		"exit code changes":             {withContainer(corev1.PodRunning, 0, exited(1), none), withContainer(corev1.PodRunning, 0, exited(2), none), "the exit code of main is lost", true},
		"runs in a finished pod":        {withContainer(corev1.PodRunning, 0, running, none), withContainer(corev1.PodFailed, 0, running, none), "Failed while main runs", true},
		"an init container still runs":  {withContainer(corev1.PodRunning, 0, running, none), initRuns, "Failed while init runs", true},
		"new container without history": {&corev1.PodStatus{Phase: corev1.PodPending}, withContainer(corev1.PodRunning, 0, running, none), "", false},
	} {
		t.Run(name, func(t *testing.T) {
			for _, lies := range []bool{false, true} {
				problems := StatusProblems(tt.previous, tt.now, lies)
				if tt.want == "" || tt.excused && lies {
					assert.Empty(t, problems)
				} else if assert.Len(t, problems, 1) {
					assert.Contains(t, problems[0], tt.want)
				}
			}
		})
	}
}
