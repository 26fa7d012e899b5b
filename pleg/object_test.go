package pleg

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/podcache"
	"github.com/sublet-dev/agent/runtime"
)

func observedObject(st corev1.PodStatus) runtime.Pod {
	return runtime.Pod{UID: "u", Object: &corev1.Pod{Status: st}}
}

// PL-10: a pod that the runtime reports as an object is synced when its status changes.
func TestDifference_Object(t *testing.T) {
	running := observedObject(corev1.PodStatus{Phase: corev1.PodRunning})
	for name, c := range map[string]struct {
		previous, current runtime.Pod
		want              []Event
	}{
		"created": {runtime.Pod{UID: "u"}, running, []Event{{Type: PodSync, UID: "u"}}},
		"changed": {running, observedObject(corev1.PodStatus{Phase: corev1.PodFailed}), []Event{{Type: PodSync, UID: "u"}}},
		"removed": {running, runtime.Pod{UID: "u"}, []Event{{Type: PodSync, UID: "u"}}},
		"same":    {running, observedObject(corev1.PodStatus{Phase: corev1.PodRunning}), nil},
	} {
		assert.Equal(t, c.want, difference(c.previous, c.current), name)
	}
}

// PL-10: equal statuses have equal fingerprints, and others do not.
func TestGenerator_FingerprintOfObject(t *testing.T) {
	g, err := New(Config{Runtime: newFakeRuntime(), Cache: new(podcache.Cache)})
	require.NoError(t, err)
	of := func(p runtime.Pod) uint64 { return g.fingerprint(&p) }
	ready := func(s corev1.ConditionStatus) corev1.PodStatus {
		return corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: s}}}
	}
	assert.Equal(t, of(observedObject(ready("True"))), of(observedObject(ready("True"))))
	assert.NotEqual(t, of(observedObject(ready("True"))), of(observedObject(ready("False"))))
	assert.NotZero(t, of(observedObject(corev1.PodStatus{})), "it is not absent")
}
