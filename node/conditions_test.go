package node

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

type reporter func() []corev1.NodeCondition

func (r reporter) Conditions() []corev1.NodeCondition { return r() }

func fixed(conditions ...corev1.NodeCondition) reporter {
	return func() []corev1.NodeCondition { return conditions }
}

func newConditions(t *testing.T, cfg ConditionsConfig) *Conditions {
	t.Helper()
	c, err := NewConditions(cfg)
	require.NoError(t, err)
	return c
}

func TestNewConditions_RejectsNil(t *testing.T) {
	_, err := NewConditions(ConditionsConfig{Checks: []Check{nil}})
	require.ErrorContains(t, err, "ConditionsConfig.Checks[0]: required")
	_, err = NewConditions(ConditionsConfig{Reporters: []Reporter{nil}})
	require.ErrorContains(t, err, "ConditionsConfig.Reporters[0]: required")
}

// KU-6
func TestConditions_AreThoseOfAKubelet(t *testing.T) {
	got := newConditions(t, ConditionsConfig{}).At(time.Now())
	var all []string
	for _, c := range got {
		all = append(all, string(c.Type)+"="+string(c.Status)+" "+c.Reason+": "+c.Message)
	}
	assert.Equal(t, []string{
		"MemoryPressure=False KubeletHasSufficientMemory: kubelet has sufficient memory available",
		"DiskPressure=False KubeletHasNoDiskPressure: kubelet has no disk pressure",
		"PIDPressure=False KubeletHasSufficientPID: kubelet has sufficient PID available",
		"Ready=True KubeletReady: kubelet is posting ready status",
	}, all)
}

func TestConditions_TheFirstReporterOfATypeWins(t *testing.T) {
	c := newConditions(t, ConditionsConfig{Reporters: []Reporter{
		fixed(corev1.NodeCondition{Type: corev1.NodeDiskPressure, Status: corev1.ConditionTrue, Reason: "a"}, corev1.NodeCondition{Type: "Fan", Status: corev1.ConditionTrue}),
		fixed(corev1.NodeCondition{Type: corev1.NodeDiskPressure, Status: corev1.ConditionFalse, Reason: "b"}, corev1.NodeCondition{Type: corev1.NodeReady, Status: corev1.ConditionFalse}),
	}})
	got := c.At(time.Now())
	require.Len(t, got, 5)
	assert.Equal(t, "a", got[1].Reason)
	assert.EqualValues(t, "Fan", got[3].Type)
	assert.Equal(t, corev1.ConditionTrue, got[4].Status, "Ready is computed from the checks alone")
}

func TestConditions_KeepTransitionTimes(t *testing.T) {
	var failure error
	c := newConditions(t, ConditionsConfig{Checks: []Check{func() error { return failure }}})
	start := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	ready := func(at time.Time) corev1.NodeCondition {
		all := c.At(at)
		return all[len(all)-1]
	}
	ready(start)
	got := ready(start.Add(time.Minute))
	assert.Equal(t, start, got.LastTransitionTime.UTC())
	assert.Equal(t, start.Add(time.Minute), got.LastHeartbeatTime.UTC())

	failure = errors.New("container runtime is down")
	got = ready(start.Add(2 * time.Minute))
	assert.Equal(t, corev1.ConditionFalse, got.Status)
	assert.Equal(t, start.Add(2*time.Minute), got.LastTransitionTime.UTC())

	failure = errors.New("PLEG is not healthy")
	got = ready(start.Add(-time.Hour))
	assert.Equal(t, "PLEG is not healthy", got.Message)
	assert.Equal(t, start.Add(2*time.Minute), got.LastTransitionTime.UTC(), "a clock that is set back is no transition")
}

func TestConditions_PanicsAreContained(t *testing.T) {
	c := newConditions(t, ConditionsConfig{
		Checks:    []Check{func() error { panic("check") }},
		Reporters: []Reporter{reporter(func() []corev1.NodeCondition { panic("reporter") }), fixed(corev1.NodeCondition{Type: "Fan"})},
	})
	got := c.At(time.Now())
	require.Len(t, got, 5)
	assert.EqualValues(t, "Fan", got[3].Type)
	assert.Equal(t, corev1.ConditionFalse, got[4].Status)
	assert.Contains(t, got[4].Message, "panic: check")
}

// KU-6
func TestReady_Message(t *testing.T) {
	a, b := errors.New("a"), errors.New("b")
	long := errors.New(strings.Repeat("x", 1<<20))
	for name, tc := range map[string]struct {
		errs []error
		want string
	}{
		"is that of the error":  {[]error{nil, a}, "a"},
		"is a list of errors":   {[]error{a, b, a}, "[a, b]"},
		"is bounded":            {[]error{long}, strings.Repeat("x", maxMessage)},
		"is valid in an object": {[]error{errors.New("\xff")}, "?"},
	} {
		t.Run(name, func(t *testing.T) {
			got := Ready(tc.errs...)
			assert.Equal(t, corev1.ConditionFalse, got.Status)
			assert.Equal(t, "KubeletNotReady", got.Reason)
			assert.Equal(t, tc.want, got.Message)
		})
	}
}

func TestSetTimes_IgnoresTransitionsWithoutTime(t *testing.T) {
	now := time.Now()
	previous := []corev1.NodeCondition{{Type: "Fan", Status: corev1.ConditionTrue}}
	current := []corev1.NodeCondition{{Type: "Fan", Status: corev1.ConditionTrue}}
	got := SetTimes(previous, current, now)
	assert.Equal(t, metav1.NewTime(now), got[0].LastTransitionTime)
	assert.Zero(t, current[0].LastTransitionTime, "the input is not changed")
}
