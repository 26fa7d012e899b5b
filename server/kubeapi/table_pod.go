package kubeapi

import (
	"fmt"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/sublet-dev/agent/podspec"
)

func podTable() table {
	return table{columns("Name", "Ready", "Status", "Restarts", "Age", "|", "IP", "Node", "Nominated Node", "Readiness Gates"), func(o object, now time.Time) []any {
		pod, ok := o.(*corev1.Pod)
		if !ok {
			return nil
		}
		s := summarize(pod)
		ip := pod.Status.PodIP
		if len(pod.Status.PodIPs) > 0 {
			ip = pod.Status.PodIPs[0].IP
		}
		return []any{
			pod.Name, fmt.Sprintf("%d/%d", s.ready, s.containers), s.status, s.restartText(now), age(pod.CreationTimestamp, now),
			orNone(ip), orNone(pod.Spec.NodeName), orNone(pod.Status.NominatedNodeName), readinessGates(pod),
		}
	}}
}

// podSummary is a pod in one line. The words are those of kubectl, which people and scripts
// know.
type podSummary struct {
	status            string
	ready, containers int
	restarts          int32
	lastRestart       time.Time
}

// restartText is the count with the time of the last restart.
func (s podSummary) restartText(now time.Time) string {
	if s.restarts == 0 || s.lastRestart.IsZero() {
		return strconv.Itoa(int(s.restarts))
	}
	return fmt.Sprintf("%d (%s ago)", s.restarts, duration.HumanDuration(now.Sub(s.lastRestart)))
}

func summarize(pod *corev1.Pod) podSummary {
	s := podSummary{status: string(pod.Status.Phase), containers: len(pod.Spec.Containers)}
	if pod.Status.Reason != "" {
		s.status = pod.Status.Reason
	}
	sidecars := podSummary{}
	initializing := s.addInitContainers(pod, &sidecars)
	if !initializing || hasCondition(pod, corev1.PodInitialized) {
		s.restarts, s.lastRestart = sidecars.restarts, sidecars.lastRestart
		s.addContainers(pod)
	}
	if pod.DeletionTimestamp != nil && !podspec.IsTerminalPhase(pod.Status.Phase) {
		s.status = "Terminating"
	}
	return s
}

// addInitContainers adds init containers up to the first that has not completed. It
// reports whether there is one. Sidecars count also later.
func (s *podSummary) addInitContainers(pod *corev1.Pod, sidecars *podSummary) bool {
	specs := map[string]*corev1.Container{}
	for i := range pod.Spec.InitContainers {
		c := &pod.Spec.InitContainers[i]
		specs[c.Name] = c
		if podspec.IsSidecar(c) {
			s.containers++
		}
	}
	for i := range pod.Status.InitContainerStatuses {
		st := &pod.Status.InitContainerStatuses[i]
		spec := specs[st.Name]
		isSidecar := spec != nil && podspec.IsSidecar(spec)
		s.addRestarts(st)
		if isSidecar {
			sidecars.addRestarts(st)
		}
		switch t, w := st.State.Terminated, st.State.Waiting; {
		case t != nil && t.ExitCode == 0:
			continue
		case isSidecar && st.Started != nil && *st.Started:
			if st.Ready {
				s.ready++
			}
			continue
		case t != nil:
			s.status = "Init:" + terminatedReason(t)
		case w != nil && w.Reason != "" && w.Reason != "PodInitializing":
			s.status = "Init:" + w.Reason
		default:
			s.status = fmt.Sprintf("Init:%d/%d", i, len(pod.Spec.InitContainers))
		}
		return true
	}
	return false
}

// addContainers adds the containers: the first one that is not well gives the status.
func (s *podSummary) addContainers(pod *corev1.Pod) {
	hasRunning := false
	for i := len(pod.Status.ContainerStatuses) - 1; i >= 0; i-- {
		st := &pod.Status.ContainerStatuses[i]
		s.addRestarts(st)
		switch {
		case st.State.Waiting != nil && st.State.Waiting.Reason != "":
			s.status = st.State.Waiting.Reason
		case st.State.Terminated != nil:
			s.status = terminatedReason(st.State.Terminated)
		case st.Ready && st.State.Running != nil:
			hasRunning = true
			s.ready++
		}
	}
	if s.status == "Completed" && hasRunning {
		s.status = "NotReady"
		if hasCondition(pod, corev1.PodReady) {
			s.status = "Running"
		}
	}
}

func (s *podSummary) addRestarts(st *corev1.ContainerStatus) {
	s.restarts += st.RestartCount
	if t := st.LastTerminationState.Terminated; t != nil && t.FinishedAt.After(s.lastRestart) {
		s.lastRestart = t.FinishedAt.Time
	}
}

func terminatedReason(t *corev1.ContainerStateTerminated) string {
	switch {
	case t.Reason != "":
		return t.Reason
	case t.Signal != 0:
		return fmt.Sprintf("Signal:%d", t.Signal)
	}
	return fmt.Sprintf("ExitCode:%d", t.ExitCode)
}

func hasCondition(pod *corev1.Pod, t corev1.PodConditionType) bool {
	for i := range pod.Status.Conditions {
		if pod.Status.Conditions[i].Type == t {
			return pod.Status.Conditions[i].Status == corev1.ConditionTrue
		}
	}
	return false
}

func readinessGates(pod *corev1.Pod) string {
	if len(pod.Spec.ReadinessGates) == 0 {
		return none
	}
	n := 0
	for _, gate := range pod.Spec.ReadinessGates {
		if hasCondition(pod, gate.ConditionType) {
			n++
		}
	}
	return fmt.Sprintf("%d/%d", n, len(pod.Spec.ReadinessGates))
}
