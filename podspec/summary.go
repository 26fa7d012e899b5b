package podspec

import (
	"fmt"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/duration"
)

// Summary is a pod in one line, in the words of `kubectl get pods`, which people and scripts know.
type Summary struct {
	// Status is the phase, or what says more: the reason of the pod, that of a container that is not well
	// (CrashLoopBackOff), how far its init containers are (Init:1/2), or Terminating.
	Status string
	// Ready is how many of the Containers are ready; sidecars are among them, other init containers are not.
	Ready, Containers int
	Restarts          int32
	LastRestart       time.Time // zero if it is not known
}

// RestartText returns the number of restarts, with the time since the last one.
func (s Summary) RestartText(now time.Time) string {
	if s.Restarts == 0 || s.LastRestart.IsZero() {
		return strconv.Itoa(int(s.Restarts))
	}
	return fmt.Sprintf("%d (%s ago)", s.Restarts, duration.HumanDuration(now.Sub(s.LastRestart)))
}

// Summarize returns the summary of a pod from its spec and its status.
func Summarize(pod *corev1.Pod) Summary {
	s := Summary{Status: string(pod.Status.Phase), Containers: len(pod.Spec.Containers)}
	if pod.Status.Reason != "" {
		s.Status = pod.Status.Reason
	}
	sidecars := Summary{}
	initializing := s.addInitContainers(pod, &sidecars)
	if !initializing || HasCondition(pod, corev1.PodInitialized) {
		s.Restarts, s.LastRestart = sidecars.Restarts, sidecars.LastRestart
		s.addContainers(pod)
	}
	if pod.DeletionTimestamp != nil && !IsTerminalPhase(pod.Status.Phase) {
		s.Status = "Terminating"
	}
	return s
}

// addInitContainers adds init containers up to the first that has not completed. It
// reports whether there is one. Sidecars count also later.
func (s *Summary) addInitContainers(pod *corev1.Pod, sidecars *Summary) bool {
	specs := map[string]*corev1.Container{}
	for i := range pod.Spec.InitContainers {
		c := &pod.Spec.InitContainers[i]
		specs[c.Name] = c
		if IsSidecar(c) {
			s.Containers++
		}
	}
	for i := range pod.Status.InitContainerStatuses {
		st := &pod.Status.InitContainerStatuses[i]
		spec := specs[st.Name]
		isSidecar := spec != nil && IsSidecar(spec)
		s.addRestarts(st)
		if isSidecar {
			sidecars.addRestarts(st)
		}
		switch t, w := st.State.Terminated, st.State.Waiting; {
		case t != nil && t.ExitCode == 0:
			continue
		case isSidecar && st.Started != nil && *st.Started:
			if st.Ready {
				s.Ready++
			}
			continue
		case t != nil:
			s.Status = "Init:" + terminatedReason(t)
		case w != nil && w.Reason != "" && w.Reason != "PodInitializing":
			s.Status = "Init:" + w.Reason
		default:
			s.Status = fmt.Sprintf("Init:%d/%d", i, len(pod.Spec.InitContainers))
		}
		return true
	}
	return false
}

// addContainers adds the Containers: the first one that is not well gives the status, or
// the first that has failed if that one has completed.
func (s *Summary) addContainers(pod *corev1.Pod) {
	hasRunning, failed := false, ""
	for i := len(pod.Status.ContainerStatuses) - 1; i >= 0; i-- {
		st := &pod.Status.ContainerStatuses[i]
		s.addRestarts(st)
		switch {
		case st.State.Waiting != nil && st.State.Waiting.Reason != "":
			s.Status = st.State.Waiting.Reason
		case st.State.Terminated != nil:
			s.Status = terminatedReason(st.State.Terminated)
			if st.State.Terminated.ExitCode != 0 {
				failed = s.Status
			}
		case st.Ready && st.State.Running != nil:
			hasRunning = true
			s.Ready++
		}
	}
	if s.Status != "Completed" {
		return
	}
	switch {
	case hasRunning && HasCondition(pod, corev1.PodReady):
		s.Status = "Running"
	case failed != "":
		s.Status = failed
	case hasRunning:
		s.Status = "NotReady"
	}
}

func (s *Summary) addRestarts(st *corev1.ContainerStatus) {
	s.Restarts += st.RestartCount
	if t := st.LastTerminationState.Terminated; t != nil && t.FinishedAt.After(s.LastRestart) {
		s.LastRestart = t.FinishedAt.Time
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

// HasCondition reports whether the status of a pod's condition is True.
func HasCondition(pod *corev1.Pod, t corev1.PodConditionType) bool {
	return TrueCondition(&pod.Status, t) != nil
}

// TrueCondition returns the condition of the type if its status is True, or else nil. It is part of
// the pod's status.
func TrueCondition(st *corev1.PodStatus, t corev1.PodConditionType) *corev1.PodCondition {
	i := slices.IndexFunc(st.Conditions, func(c corev1.PodCondition) bool { return c.Type == t && c.Status == corev1.ConditionTrue })
	if i < 0 {
		return nil
	}
	return &st.Conditions[i]
}
