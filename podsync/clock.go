package podsync

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sublet-dev/agent/internal/monotonic"
	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/runtime"
)

// The times of the runtime and of statuses are wall clock times, and the wall clock can
// be set while a pod runs. Periods are therefore measured on the monotonic clock, from
// the moment at which this process first observes a time.

// activeSince returns on the monotonic clock when the pod became active. start is the
// wall clock time of the status; zero results in the zero time.
func (st *podState) activeSince(start *metav1.Time, now time.Time) metav1.Time {
	if start.IsZero() {
		return metav1.Time{}
	}
	if !start.Round(0).Equal(st.start) {
		st.start, st.active = start.Round(0), monotonic.Past(start.Time, now)
	}
	return metav1.NewTime(st.active)
}

// withEnds returns observed with the ends of its exited containers on the monotonic
// clock, as computed when they were first observed. Back-offs count from these.
// observed itself is not changed.
func (st *podState) withEnds(observed runtime.Pod, now time.Time) runtime.Pod {
	var ends map[string]time.Time
	for i := range observed.Containers {
		c := &observed.Containers[i]
		if c.State != runtime.Exited {
			continue
		}
		if ends == nil {
			ends = map[string]time.Time{}
			observed.Containers = slices.Clone(observed.Containers)
			c = &observed.Containers[i]
		}
		end := &c.Finished
		if end.IsZero() {
			end = &c.Created
		}
		at, ok := st.ends[c.ID]
		if !ok {
			at = monotonic.Past(*end, now)
		}
		ends[c.ID], *end = at, at
	}
	st.ends = ends
	return observed
}

// isPastActiveDeadline reports whether spec.activeDeadlineSeconds has passed, and when
// it passes; zero: the pod has no deadline or has not started.
func isPastActiveDeadline(pod *corev1.Pod, start *metav1.Time, now time.Time) (deadline time.Time, exceeded bool) {
	if pod.Spec.ActiveDeadlineSeconds == nil || start.IsZero() {
		return time.Time{}, false
	}
	deadline = start.Add(podspec.Seconds(*pod.Spec.ActiveDeadlineSeconds))
	return deadline, !now.Before(deadline)
}

// hasEndedLate reports whether the containers of a pod ended after its active deadline while
// this process did not run, or were terminated for it by a process that could not report that:
// they are no success then, whatever their exit codes.
func (s *Syncer) hasEndedLate(pod *corev1.Pod, observed runtime.Pod) bool {
	status, ok := s.cfg.Statuses.Get(pod.UID)
	if !ok || s.cfg.PodKiller == nil || podspec.IsTerminalPhase(status.Phase) || observed.CouldHaveRunningContainers() {
		return false
	}
	var end time.Time
	for i := range observed.Containers {
		end = later(end, observed.Containers[i].Finished)
	}
	_, exceeded := isPastActiveDeadline(pod, status.StartTime, end)
	terminal, _ := runtime.IsTerminal(pod, observed)
	return exceeded && terminal
}

func later(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}

// earlier returns the first of two times; zero means none.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}
