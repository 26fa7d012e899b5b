package podspec_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sublet-dev/agent/podspec"
)

func waiting(name, reason string) corev1.ContainerStatus {
	return corev1.ContainerStatus{Name: name, State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason}}}
}

func running(name string, ready bool) corev1.ContainerStatus {
	started := true
	return corev1.ContainerStatus{Name: name, Ready: ready, Started: &started, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}
}

func exited(name string, t corev1.ContainerStateTerminated) corev1.ContainerStatus {
	return corev1.ContainerStatus{Name: name, State: corev1.ContainerState{Terminated: &t}}
}

// The words are those of kubectl with a real API server.
func TestSummarize_StatusOfPods(t *testing.T) {
	always := corev1.ContainerRestartPolicyAlways
	completed := corev1.ContainerStateTerminated{Reason: "Completed"}
	failed := corev1.ContainerStateTerminated{Reason: "Error", ExitCode: 1}
	ready := []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	deleted := metav1.Now()
	crashed := waiting("a", "CrashLoopBackOff")
	crashed.RestartCount = 4
	crashed.LastTerminationState.Terminated = &corev1.ContainerStateTerminated{FinishedAt: metav1.Time{Time: time.Unix(1000, 0)}}
	restartedInit := exited("i", completed)
	restartedInit.RestartCount = 2
	two := corev1.PodSpec{Containers: []corev1.Container{{Name: "a"}, {Name: "b"}}}
	three := corev1.PodSpec{Containers: []corev1.Container{{Name: "a"}, {Name: "b"}, {Name: "c"}}}
	withInit := corev1.PodSpec{Containers: []corev1.Container{{Name: "a"}}, InitContainers: []corev1.Container{{Name: "i"}, {Name: "j"}}}
	withSidecar := corev1.PodSpec{Containers: []corev1.Container{{Name: "a"}}, InitContainers: []corev1.Container{{Name: "s", RestartPolicy: &always}}}
	for name, c := range map[string]struct {
		spec            corev1.PodSpec
		status          corev1.PodStatus
		deleted         *metav1.Time
		ready, want, re string
	}{
		"new":                     {two, corev1.PodStatus{Phase: "Pending"}, nil, "0/2", "Pending", "0"},
		"rejected":                {two, corev1.PodStatus{Phase: "Failed", Reason: "OutOfcpu"}, nil, "0/2", "OutOfcpu", "0"},
		"creating":                {two, corev1.PodStatus{Phase: "Pending", ContainerStatuses: []corev1.ContainerStatus{waiting("a", "ContainerCreating"), waiting("b", "ContainerCreating")}}, nil, "0/2", "ContainerCreating", "0"},
		"running":                 {two, corev1.PodStatus{Phase: "Running", ContainerStatuses: []corev1.ContainerStatus{running("a", true), running("b", true)}}, nil, "2/2", "Running", "0"},
		"not ready":               {two, corev1.PodStatus{Phase: "Running", ContainerStatuses: []corev1.ContainerStatus{running("a", true), running("b", false)}}, nil, "1/2", "Running", "0"},
		"crash":                   {two, corev1.PodStatus{Phase: "Running", ContainerStatuses: []corev1.ContainerStatus{crashed, running("b", true)}}, nil, "1/2", "CrashLoopBackOff", "4 (60s ago)"},
		"the first is worse":      {two, corev1.PodStatus{Phase: "Pending", ContainerStatuses: []corev1.ContainerStatus{waiting("a", "ImagePullBackOff"), waiting("b", "ContainerCreating")}}, nil, "0/2", "ImagePullBackOff", "0"},
		"waiting without reason":  {two, corev1.PodStatus{Phase: "Pending", ContainerStatuses: []corev1.ContainerStatus{waiting("a", "")}}, nil, "0/2", "Pending", "0"},
		"completed":               {two, corev1.PodStatus{Phase: "Succeeded", ContainerStatuses: []corev1.ContainerStatus{exited("a", completed), exited("b", completed)}}, nil, "0/2", "Completed", "0"},
		"one completed, not well": {two, corev1.PodStatus{Phase: "Running", ContainerStatuses: []corev1.ContainerStatus{exited("a", completed), running("b", true)}}, nil, "1/2", "NotReady", "0"},
		"one completed, well":     {two, corev1.PodStatus{Phase: "Running", Conditions: ready, ContainerStatuses: []corev1.ContainerStatus{exited("a", completed), running("b", true)}}, nil, "1/2", "Running", "0"},
		"another has failed":      {two, corev1.PodStatus{Phase: "Failed", ContainerStatuses: []corev1.ContainerStatus{exited("a", completed), exited("b", failed)}}, nil, "0/2", "Error", "0"},
		"and another runs":        {three, corev1.PodStatus{Phase: "Running", ContainerStatuses: []corev1.ContainerStatus{exited("a", completed), exited("b", failed), running("c", true)}}, nil, "1/3", "Error", "0"},
		"and the pod is ready":    {three, corev1.PodStatus{Phase: "Running", Conditions: ready, ContainerStatuses: []corev1.ContainerStatus{exited("a", completed), exited("b", failed), running("c", true)}}, nil, "1/3", "Running", "0"},
		"signal":                  {two, corev1.PodStatus{Phase: "Failed", ContainerStatuses: []corev1.ContainerStatus{exited("a", corev1.ContainerStateTerminated{Signal: 9, ExitCode: 137})}}, nil, "0/2", "Signal:9", "0"},
		"exit code":               {two, corev1.PodStatus{Phase: "Failed", ContainerStatuses: []corev1.ContainerStatus{exited("a", corev1.ContainerStateTerminated{ExitCode: 3})}}, nil, "0/2", "ExitCode:3", "0"},
		"terminating":             {two, corev1.PodStatus{Phase: "Running", ContainerStatuses: []corev1.ContainerStatus{running("a", true)}}, &deleted, "1/2", "Terminating", "0"},
		"deleted when over":       {two, corev1.PodStatus{Phase: "Failed", Reason: "Evicted"}, &deleted, "0/2", "Evicted", "0"},
		"initializing":            {withInit, corev1.PodStatus{Phase: "Pending", InitContainerStatuses: []corev1.ContainerStatus{restartedInit, running("j", false)}, ContainerStatuses: []corev1.ContainerStatus{waiting("a", "PodInitializing")}}, nil, "0/1", "Init:1/2", "2"},
		"init waits":              {withInit, corev1.PodStatus{Phase: "Pending", InitContainerStatuses: []corev1.ContainerStatus{waiting("i", "PodInitializing")}}, nil, "0/1", "Init:0/2", "0"},
		"init pulls":              {withInit, corev1.PodStatus{Phase: "Pending", InitContainerStatuses: []corev1.ContainerStatus{waiting("i", "ErrImagePull")}}, nil, "0/1", "Init:ErrImagePull", "0"},
		"init failed":             {withInit, corev1.PodStatus{Phase: "Pending", InitContainerStatuses: []corev1.ContainerStatus{exited("i", corev1.ContainerStateTerminated{ExitCode: 2})}}, nil, "0/1", "Init:ExitCode:2", "0"},
		"initialized":             {withInit, corev1.PodStatus{Phase: "Running", InitContainerStatuses: []corev1.ContainerStatus{restartedInit, exited("j", completed)}, ContainerStatuses: []corev1.ContainerStatus{running("a", true)}}, nil, "1/1", "Running", "0"},
		"sidecar":                 {withSidecar, corev1.PodStatus{Phase: "Running", InitContainerStatuses: []corev1.ContainerStatus{running("s", true)}, ContainerStatuses: []corev1.ContainerStatus{running("a", true)}}, nil, "2/2", "Running", "0"},
		"sidecar is not ready":    {withSidecar, corev1.PodStatus{Phase: "Running", InitContainerStatuses: []corev1.ContainerStatus{running("s", false)}, ContainerStatuses: []corev1.ContainerStatus{running("a", true)}}, nil, "1/2", "Running", "0"},
	} {
		s := podspec.Summarize(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{DeletionTimestamp: c.deleted}, Spec: c.spec, Status: c.status})
		assert.Equal(t, c.want, s.Status, name)
		assert.Equal(t, c.ready, fmt.Sprintf("%d/%d", s.Ready, s.Containers), name)
		assert.Equal(t, c.re, s.RestartText(time.Unix(1060, 0)), name)
	}
}
