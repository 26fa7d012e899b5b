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

// The runtime's times and those of a status are by the wall clock, which may be set
// while the pod lives. What is measured from them goes by the monotonic clock from
// the first time on that this process sees them.

// activeSince returns when the pod became active, which start says by the wall
// clock; the zero time if it has not.
func (st *podState) activeSince(start *metav1.Time, now time.Time) metav1.Time {
	if start.IsZero() {
		return metav1.Time{}
	}
	if !start.Round(0).Equal(st.start) {
		st.start, st.active = start.Round(0), monotonic.Past(start.Time, now)
	}
	return metav1.NewTime(st.active)
}

// withEnds returns what was seen with the ends of its containers, from which
// back-offs are counted, as they were when they were first seen.
func (st *podState) withEnds(seen runtime.Pod, now time.Time) runtime.Pod {
	var ends map[string]time.Time
	for i := range seen.Containers {
		c := &seen.Containers[i]
		if c.State != runtime.Exited {
			continue
		}
		if ends == nil {
			ends = map[string]time.Time{}
			seen.Containers = slices.Clone(seen.Containers)
			c = &seen.Containers[i]
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
	return seen
}

// isPastActiveDeadline tells whether spec.activeDeadlineSeconds is over, and when it
// will be. Zero: the pod has none, or has not started.
func isPastActiveDeadline(pod *corev1.Pod, start *metav1.Time, now time.Time) (due time.Time, late bool) {
	if pod.Spec.ActiveDeadlineSeconds == nil || start.IsZero() {
		return time.Time{}, false
	}
	due = start.Add(podspec.Seconds(*pod.Spec.ActiveDeadlineSeconds))
	return due, !now.Before(due)
}
