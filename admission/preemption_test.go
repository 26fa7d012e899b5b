package admission

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/podspec"
)

// guaranteed returns a pod whose limits are its requests.
func guaranteed(t testing.TB, uid, resources string) *corev1.Pod {
	t.Helper()
	return pod(t, uid, "{containers: [{name: a, image: i, resources: {requests: "+resources+", limits: "+resources+"}}]}")
}

func withPriority(p *corev1.Pod, priority int32) *corev1.Pod {
	p.Spec.Priority = &priority
	return p
}

func uids(pods []*corev1.Pod) []types.UID {
	var list []types.UID
	for _, p := range pods {
		list = append(list, p.UID)
	}
	return list
}

// SL-12: the victims are few, and of the lowest class of quality of service that has
// enough.
func TestAdmitter_Victims(t *testing.T) {
	node := Config{Allocatable: list("4", "4Gi"), MaxPods: 6}
	critical := func(requests string) *corev1.Pod {
		return withPriority(requesting(t, "critical", requests), podspec.SystemCriticalPriority)
	}
	done := requesting(t, "done", "{cpu: 1}")
	done.Status.Phase = corev1.PodSucceeded
	for name, tc := range map[string]struct {
		pod     *corev1.Pod
		others  []*corev1.Pod
		victims []types.UID
		no      bool // not enough
	}{
		"nothing is missing": {pod: critical("{cpu: 2}"), others: []*corev1.Pod{requesting(t, "a", "{cpu: 2}")}},
		"one has enough": {
			pod: critical("{cpu: 2}"), others: []*corev1.Pod{requesting(t, "a", "{cpu: 1}"), requesting(t, "b", "{cpu: 2}"), requesting(t, "c", "{cpu: 1}")},
			victims: []types.UID{"b"},
		},
		"the smaller of two that have enough": {
			pod: critical("{cpu: 1}"), others: []*corev1.Pod{requesting(t, "a", "{cpu: 3}"), requesting(t, "b", "{cpu: 1}")},
			victims: []types.UID{"b"},
		},
		"the smaller memory first": {
			pod: critical("{cpu: 1}"), others: []*corev1.Pod{requesting(t, "a", "{cpu: 1, memory: 2Gi}"), requesting(t, "b", "{cpu: 3, memory: 1Gi}")},
			victims: []types.UID{"b"},
		},
		"the lower priority of two that have enough": {
			pod: critical("{cpu: 1}"), others: []*corev1.Pod{withPriority(requesting(t, "a", "{cpu: 1}"), 5), withPriority(requesting(t, "b", "{cpu: 3}"), 4)},
			victims: []types.UID{"b"},
		},
		"the first of equals": {
			pod: critical("{cpu: 2}"), others: []*corev1.Pod{requesting(t, "b", "{cpu: 2}"), requesting(t, "a", "{cpu: 2}")},
			victims: []types.UID{"a"},
		},
		"burstable before guaranteed": {
			pod: critical("{cpu: 2}"), others: []*corev1.Pod{guaranteed(t, "g", "{cpu: 2, memory: 1Gi}"), requesting(t, "b1", "{cpu: 1}"), requesting(t, "b2", "{cpu: 1}")},
			victims: []types.UID{"b1", "b2"},
		},
		"guaranteed only for what others do not have": {
			pod: critical("{cpu: 3}"), others: []*corev1.Pod{guaranteed(t, "g1", "{cpu: 2, memory: 1Gi}"), guaranteed(t, "g2", "{cpu: 1, memory: 1Gi}"), requesting(t, "b", "{cpu: 1}")},
			victims: []types.UID{"g1", "b"},
		},
		"best effort for a place": {
			pod:     critical("{}"),
			others:  []*corev1.Pod{requesting(t, "b1", "{cpu: 1m}"), requesting(t, "b2", "{cpu: 1m}"), requesting(t, "e", "{}"), requesting(t, "b3", "{cpu: 1m}"), guaranteed(t, "g", "{cpu: 1m, memory: 1}"), requesting(t, "b4", "{cpu: 1m}")},
			victims: []types.UID{"e"},
		},
		"the place of a pod with resources": {
			pod:     critical("{cpu: 1}"),
			others:  []*corev1.Pod{requesting(t, "b1", "{cpu: 1}"), requesting(t, "e1", "{}"), requesting(t, "e2", "{}"), requesting(t, "e3", "{}"), requesting(t, "b2", "{cpu: 3}"), requesting(t, "e4", "{}")},
			victims: []types.UID{"b1"},
		},
		"several resources": {
			pod: critical("{cpu: 2, memory: 3Gi}"), others: []*corev1.Pod{requesting(t, "cpu", "{cpu: 3}"), requesting(t, "memory", "{memory: 3Gi}"), requesting(t, "small", "{cpu: 1, memory: 1Gi}")},
			victims: []types.UID{"cpu", "memory"},
		},
		"one for several resources": {
			pod: critical("{cpu: 2, memory: 3Gi}"), others: []*corev1.Pod{requesting(t, "cpu", "{cpu: 2}"), requesting(t, "both", "{cpu: 2, memory: 4Gi}")},
			victims: []types.UID{"both"},
		},
		"terminal pods and earlier versions of itself are no victims": {
			pod: critical("{cpu: 1}"), others: []*corev1.Pod{done, requesting(t, "critical", "{cpu: 1}"), requesting(t, "a", "{cpu: 4}")},
			victims: []types.UID{"a"},
		},
		"not enough":                    {pod: critical("{cpu: 5}"), others: []*corev1.Pod{requesting(t, "a", "{cpu: 4}")}, no: true},
		"more than can be counted":      {pod: critical("{memory: 9223372036854775807}"), others: []*corev1.Pod{requesting(t, "a", "{memory: 5Gi}")}, no: true},
		"only critical ones":            {pod: critical("{cpu: 1}"), others: []*corev1.Pod{withPriority(requesting(t, "a", "{cpu: 4}"), podspec.SystemCriticalPriority)}, no: true},
		"the pod is not critical":       {pod: requesting(t, "plain", "{cpu: 1}"), others: []*corev1.Pod{requesting(t, "a", "{cpu: 4}")}, no: true},
		"one that may not be preempted": {pod: critical("{cpu: 1}"), others: []*corev1.Pod{requesting(t, "kept", "{cpu: 4}")}, no: true},
	} {
		t.Run(name, func(t *testing.T) {
			a, err := New(node)
			require.NoError(t, err)
			given := slices.Clone(tc.others)
			victims, ok := a.Victims(tc.pod, tc.others, func(p *corev1.Pod) bool { return p.UID != "kept" })
			assert.Equal(t, tc.no, !ok)
			assert.Equal(t, tc.victims, uids(victims))
			assert.Equal(t, given, tc.others, "the argument is not changed")
			if ok {
				rest := slices.DeleteFunc(given, func(p *corev1.Pod) bool { return slices.Contains(victims, p) })
				assert.True(t, a.Admit(tc.pod, rest).Admitted)
			}
		})
	}
}

// SL-12: a victim that later victims make unnecessary is spared.
func TestAdmitter_VictimsAreAllNeeded(t *testing.T) {
	a, err := New(Config{Allocatable: list("10", "10Gi")})
	require.NoError(t, err)
	critical := withPriority(requesting(t, "critical", "{cpu: 6, memory: 6Gi}"), podspec.SystemCriticalPriority)
	// The even pod leaves the least missing at first, and the other two have enough without it.
	others := []*corev1.Pod{requesting(t, "cpu", "{cpu: 6}"), requesting(t, "even", "{cpu: 4, memory: 4Gi}"), requesting(t, "memory", "{memory: 6Gi}")}
	victims, ok := a.Victims(critical, others, func(*corev1.Pod) bool { return true })
	require.True(t, ok)
	assert.ElementsMatch(t, []types.UID{"cpu", "memory"}, uids(victims))
}
