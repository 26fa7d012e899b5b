package nodeshutdown

import (
	"cmp"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/podspec"
)

// GracePeriods returns the groups of a kubelet with shutdownGracePeriod, the time of all pods, and
// shutdownGracePeriodCriticalPods, the part of it that is for critical pods. It returns none if all is 0 or critical is more
// than all. Periods are truncated to seconds.
func GracePeriods(all, critical time.Duration) []Group {
	all, critical = all.Truncate(time.Second), critical.Truncate(time.Second)
	if all <= 0 || critical < 0 || critical > all {
		return nil
	}
	return []Group{{Priority: 0, Period: all - critical}, {Priority: podspec.SystemCriticalPriority, Period: critical}}
}

// Total returns the sum of the periods: how long pods have at most.
func Total(groups []Group) time.Duration {
	var total time.Duration
	for _, g := range groups {
		total += g.Period
	}
	return total
}

// sorted returns a copy of groups, lowest priority first.
func sorted(groups []Group) []Group {
	groups = slices.Clone(groups)
	slices.SortFunc(groups, func(a, b Group) int { return cmp.Compare(a.Priority, b.Priority) })
	return groups
}

// groupPods returns the pods of each of the sorted groups. A static pod has the priority of its spec, as with a kubelet:
// it is critical for admission, but does not terminate last for that.
func groupPods(groups []Group, pods []*corev1.Pod) [][]*corev1.Pod {
	grouped := make([][]*corev1.Pod, len(groups))
	for _, pod := range pods {
		i, found := slices.BinarySearchFunc(groups, podspec.Priority(pod), func(g Group, p int32) int { return cmp.Compare(g.Priority, p) })
		if !found { // i is the first group above it
			i = max(i-1, 0)
		}
		grouped[i] = append(grouped[i], pod)
	}
	return grouped
}
