package status_test

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sublet-dev/agent/internal/kubelettest"
	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/runtime"
	"github.com/sublet-dev/agent/status"
)

// kubeletStatus is a line of the table of statuses.
type kubeletStatus struct {
	Spec              corev1.PodSpec
	Moments, Statuses []string
}

// ST-2..4: statuses are those that the kubelet generates.
func TestGenerate_AsKubelet(t *testing.T) {
	kubelettest.RunCases(t, "testdata/kubelet-statuses.jsonl", func(t *testing.T, c kubeletStatus) {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "u1", Namespace: "ns", Name: "web"}, Spec: c.Spec}
		var previous corev1.PodStatus
		for i, moment := range c.Moments {
			previous = status.Generate(pod, kubeletReport(pod, moment), previous, status.NodeInfo{}, testTime.Add(time.Duration(i)*time.Minute))
			require.Equal(t, c.Statuses[i], kubeletWords(&previous), "moment %d: %s", i, moment)
		}
	})
}

// kubeletReport returns what the words of a table say.
func kubeletReport(pod *corev1.Pod, moment string) runtime.Report {
	r := runtime.Report{Probes: runtime.PodProbeResults{}, Failures: map[string]runtime.Failure{}, Observed: runtime.Pod{
		UID: pod.UID, Namespace: pod.Namespace, Name: pod.Name, ObservedAt: testTime,
		Sandboxes: []runtime.Sandbox{{ID: "s1", State: runtime.SandboxReady, IPs: []string{"10.0.0.1"}}},
	}}
	for text := range strings.SplitSeq(moment, ", ") {
		words := strings.Fields(text)
		if len(words) == 0 {
			continue
		}
		attempt, _ := strconv.Atoi(words[1])
		started := testTime.Add(time.Duration(attempt) * time.Minute)
		c := runtime.Container{ID: words[0] + words[1], Name: words[0], SandboxID: "s1", Attempt: uint32(attempt), State: runtime.Running, Created: started, Started: started}
		c.Type, _ = runtime.ContainerTypeOf(pod, c.Name)
		if words[2] == "exited" {
			c.State, c.Finished, c.Reason = runtime.Exited, started.Add(time.Second), "Error"
		}
		probes := runtime.ProbeResults{}
		for _, word := range words[3:] {
			switch word {
			case "0":
				c.Reason = "Completed"
			case "1":
				c.ExitCode = 1
			case "waits":
				r.Failures[c.Name] = runtime.Failure{Reason: "CrashLoopBackOff", Message: "later"}
			case "ready":
				probes.Readiness = runtime.ProbeSuccess
			case "unready":
				probes.Readiness = runtime.ProbeFailure
			case "started":
				probes.Startup = runtime.ProbeSuccess
			case "unstarted":
				probes.Startup = runtime.ProbeFailure
			}
		}
		r.Probes[c.ID] = probes
		r.Observed.Containers = append(r.Observed.Containers, c)
	}
	slices.SortStableFunc(r.Observed.Containers, func(a, b runtime.Container) int { return int(b.Attempt) - int(a.Attempt) })
	return r
}

// kubeletWords says in words what a status says, as the table does.
func kubeletWords(st *corev1.PodStatus) string {
	words := []string{string(st.Phase)}
	for _, c := range st.Conditions {
		switch {
		case c.Status == corev1.ConditionTrue && c.Type != corev1.PodScheduled:
			words = append(words, string(c.Type))
		case c.Type == corev1.PodReady && !podspec.IsTerminalPhase(st.Phase):
			words = append(words, c.Reason)
		}
	}
	slices.Sort(words[1:])
	for _, list := range [][]corev1.ContainerStatus{st.InitContainerStatuses, st.ContainerStatuses} {
		for i := range list {
			c := &list[i]
			text := fmt.Sprintf("%s %s restarts %d", c.Name, kubeletState(&c.State), c.RestartCount)
			if last := kubeletState(&c.LastTerminationState); last != "" {
				text += " last " + last
			}
			if c.Started != nil && *c.Started {
				text += " started"
			}
			if c.Ready {
				text += " ready"
			}
			words = append(words, text)
		}
	}
	return strings.Join(words, ", ")
}

func kubeletState(s *corev1.ContainerState) string {
	switch {
	case s.Waiting != nil:
		return s.Waiting.Reason
	case s.Running != nil:
		return "running"
	case s.Terminated != nil:
		return fmt.Sprintf("%s %d", s.Terminated.Reason, s.Terminated.ExitCode)
	}
	return ""
}
