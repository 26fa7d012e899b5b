package timeline

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"
)

func waiting(name, reason, message string) corev1.ContainerStatus {
	return corev1.ContainerStatus{Name: name, State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}}}
}

func exited(name string, code int32, reason string) corev1.ContainerStatus {
	return corev1.ContainerStatus{Name: name, State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: code, Reason: reason, Message: "s3cret"}}}
}

func runningStatus(name string, ready bool) corev1.ContainerStatus {
	started := true
	return corev1.ContainerStatus{Name: name, Ready: ready, Started: &started, RestartCount: 2, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}
}

func TestSummarize(t *testing.T) {
	always := corev1.ContainerRestartPolicyAlways
	pod := newPod("web")
	pod.Spec.InitContainers = []corev1.Container{{Name: "first"}, {Name: "proxy", RestartPolicy: &always}}
	list := func(c ...corev1.ContainerStatus) []corev1.ContainerStatus { return c }
	for _, tt := range []struct {
		name        string
		status      corev1.PodStatus
		terminating bool
		state       string
		health      Health
		message     string
	}{
		{"just admitted", corev1.PodStatus{Phase: corev1.PodPending}, false, "Pending", Progressing, ""},
		{"being created", corev1.PodStatus{Phase: corev1.PodPending, ContainerStatuses: list(waiting("main", "ContainerCreating", ""))}, false, "ContainerCreating", Progressing, ""},
		{"ready", corev1.PodStatus{Phase: corev1.PodRunning, ContainerStatuses: list(runningStatus("main", true))}, false, "Running", Healthy, ""},
		{"not ready", corev1.PodStatus{Phase: corev1.PodRunning, ContainerStatuses: list(runningStatus("main", false))}, false, "NotReady", Progressing, ""},
		{"terminating", corev1.PodStatus{Phase: corev1.PodRunning, ContainerStatuses: list(runningStatus("main", true))}, true, "Terminating", Progressing, ""},
		{"crash loop", corev1.PodStatus{Phase: corev1.PodRunning, ContainerStatuses: list(waiting("main", "CrashLoopBackOff", "back-off 10s"))}, false, "CrashLoopBackOff", Failing, "back-off 10s"},
		{"the first failure wins", corev1.PodStatus{Phase: corev1.PodRunning, ContainerStatuses: list(waiting("a", "ErrImagePull", "no such image"), waiting("main", "CrashLoopBackOff", ""))}, false, "ErrImagePull", Failing, "no such image"},
		{"has failed and restarts", corev1.PodStatus{Phase: corev1.PodRunning, ContainerStatuses: list(exited("main", 3, ""))}, false, "Error", Failing, "exit code 3"},
		{"out of memory", corev1.PodStatus{Phase: corev1.PodRunning, ContainerStatuses: list(exited("main", 137, "OOMKilled"))}, false, "OOMKilled", Failing, "exit code 137"},
		{"completed", corev1.PodStatus{Phase: corev1.PodSucceeded, ContainerStatuses: list(exited("main", 0, "Completed"))}, false, "Completed", Completed, ""},
		{"failed", corev1.PodStatus{Phase: corev1.PodFailed, ContainerStatuses: list(exited("main", 1, "Error"))}, true, "Error", Failing, "exit code 1"},
		{"evicted", corev1.PodStatus{Phase: corev1.PodFailed, Reason: "Evicted", Message: "low on memory", ContainerStatuses: list(exited("main", 137, "Error"))}, false, "Evicted", Failing, "low on memory"},
		{"initializing", corev1.PodStatus{Phase: corev1.PodPending, InitContainerStatuses: list(runningStatus("first", false), waiting("proxy", "PodInitializing", "")), ContainerStatuses: list(waiting("main", "PodInitializing", ""))}, false, "Init:0/2", Progressing, ""},
		{"half initialized", corev1.PodStatus{Phase: corev1.PodPending, InitContainerStatuses: list(exited("first", 0, "Completed"), waiting("proxy", "PodInitializing", "")), ContainerStatuses: list(waiting("main", "PodInitializing", ""))}, false, "Init:1/2", Progressing, ""},
		{"initialized", corev1.PodStatus{Phase: corev1.PodPending, InitContainerStatuses: list(exited("first", 0, "Completed"), runningStatus("proxy", true)), ContainerStatuses: list(waiting("main", "ContainerCreating", ""))}, false, "ContainerCreating", Progressing, ""},
		{"init container fails", corev1.PodStatus{Phase: corev1.PodPending, InitContainerStatuses: list(exited("first", 2, "Error"), waiting("proxy", "PodInitializing", "")), ContainerStatuses: list(waiting("main", "PodInitializing", ""))}, false, "Init:Error", Failing, "exit code 2"},
		{"failing beside a ready one", corev1.PodStatus{Phase: corev1.PodRunning, ContainerStatuses: list(waiting("a", "CrashLoopBackOff", "back-off"), runningStatus("main", true))}, false, "CrashLoopBackOff", Failing, "back-off"},
		{"failing beside a new one", corev1.PodStatus{Phase: corev1.PodPending, ContainerStatuses: list(waiting("a", "ErrImagePull", "no"), waiting("main", "ContainerCreating", ""))}, false, "ErrImagePull", Failing, "no"},
		{"ready before the pod runs", corev1.PodStatus{Phase: corev1.PodPending, ContainerStatuses: list(runningStatus("main", true))}, false, "Pending", Progressing, ""},
		{"waits without a reason", corev1.PodStatus{Phase: corev1.PodPending, ContainerStatuses: list(waiting("main", "", ""))}, false, "Pending", Progressing, ""},
		{"one of several has failed", corev1.PodStatus{Phase: corev1.PodSucceeded, ContainerStatuses: list(exited("a", 1, "Error"), exited("main", 0, ""))}, false, "Error", Completed, "exit code 1"},
		{"completed out of order", corev1.PodStatus{Phase: corev1.PodPending, InitContainerStatuses: list(runningStatus("first", false), exited("proxy", 0, "Completed"))}, false, "Init:0/2", Progressing, ""},
		{"sidecar has not started", corev1.PodStatus{Phase: corev1.PodPending, InitContainerStatuses: list(exited("first", 0, "Completed"), corev1.ContainerStatus{Name: "proxy", Started: new(false), State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}})}, false, "Init:1/2", Progressing, ""},
		{"evicted before it was initialized", corev1.PodStatus{Phase: corev1.PodFailed, Reason: "Evicted", InitContainerStatuses: list(runningStatus("first", false))}, false, "Evicted", Failing, ""},
		{"hook of the owner", corev1.PodStatus{Phase: corev1.PodRunning, ContainerStatuses: list(waiting("main", "PostStartHookError", `command ["login" "s3cret"]`))}, false, "PostStartHookError", Failing, "the postStart hook failed"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := summarize(pod, &tt.status, tt.terminating)
			assert.Equal(t, tt.state, s.state)
			assert.Equal(t, tt.health, s.health)
			assert.Equal(t, tt.message, s.message)
		})
	}
	long := containerOf(new(waiting("main", strings.Repeat("r", 999), strings.Repeat("m", 999))), "")
	assert.Equal(t, []int{maxReason, maxMessage}, []int{len(long.State), len(long.Message)})
	s := summarize(pod, &corev1.PodStatus{
		Phase: corev1.PodRunning, InitContainerStatuses: list(exited("first", 0, "Completed"), runningStatus("proxy", true)),
		ContainerStatuses: list(runningStatus("main", true)), EphemeralContainerStatuses: list(runningStatus("shell", false)),
	}, false)
	assert.Equal(t, 1, s.ready)
	assert.EqualValues(t, 4, s.restarts)
	var kinds []string
	for _, c := range s.containers {
		kinds = append(kinds, c.Name+" "+c.Type+" "+c.State)
	}
	assert.Equal(t, []string{"first init Completed", "proxy sidecar Running", "main  Running", "shell ephemeral Running"}, kinds)
	assert.Equal(t, Container{Name: "x", State: "Pending"}, containerOf(&corev1.ContainerStatus{Name: "x"}, ""))
	assert.Equal(t, "Completed", containerOf(&corev1.ContainerStatus{State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}}}, "").State)
}
