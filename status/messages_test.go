package status_test

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/runtime"
	"github.com/sublet-dev/agent/status"
)

// RT-14: the termination messages of a pod are 12 KiB at most, and each container
// has the same part of them.
func TestGenerate_TerminationMessagesShareTheirRoom(t *testing.T) {
	names := []string{"a", "b", "c", "d", "e", "f", "g"}
	var words []string
	var ended []runtime.Container
	for _, name := range names {
		words = append(words, "main:"+name)
		c := exited(name, 0, 1)
		c.Message = strings.Repeat("€", 1300) + "the reason"
		ended = append(ended, c)
	}
	st := status.Generate(pod(append(words, "policy=Never")...), runtime.Report{Observed: view(ended...)}, corev1.PodStatus{}, status.NodeInfo{}, testTime)
	total := 0
	for _, cs := range st.ContainerStatuses {
		require.NotNil(t, cs.State.Terminated)
		message := cs.State.Terminated.Message
		assert.True(t, strings.HasSuffix(message, "the reason"))
		assert.True(t, utf8.ValidString(message))
		assert.InDelta(t, 12<<10/len(names), len(message), utf8.UTFMax)
		total += len(message)
	}
	assert.LessOrEqual(t, total, 12<<10)
}

// Whatever a runtime answers, the status has a size that an API server takes, and is valid JSON and
// protobuf.
func TestGenerate_ClipsErrors(t *testing.T) {
	huge := "pull the image: " + strings.Repeat("€", 1<<20)
	failure := func(reason, message string) runtime.Failure {
		return runtime.Failure{Reason: reason, Message: message, Err: errors.New(message)}
	}
	for name, r := range map[string]runtime.Report{
		"container":   {Failures: map[string]runtime.Failure{"c": failure("ErrImagePull", huge)}},
		"reason":      {Failures: map[string]runtime.Failure{"c": failure(huge, "x")}},
		"pod":         {Failures: map[string]runtime.Failure{"": failure(corev1.PodReasonError, huge)}},
		"blocked":     {Blocked: &runtime.Failure{Reason: "Blocked", Message: huge}},
		"termination": {Termination: &runtime.Termination{Reason: "Evicted", Message: huge}},
		"exit":        {Observed: view(runtime.Container{Name: "c", State: runtime.Exited, Reason: huge})},
	} {
		t.Run(name, func(t *testing.T) {
			if r.Observed.ObservedAt.IsZero() {
				r.Observed = view()
			}
			first := status.Generate(pod("main:c"), r, corev1.PodStatus{}, status.NodeInfo{}, testTime)
			data, err := first.Marshal()
			require.NoError(t, err)
			assert.Greater(t, len(data), 4000, "the beginning is there")
			assert.Less(t, len(data), 4096+1024)
			text, err := json.Marshal(first)
			require.NoError(t, err)
			assert.Contains(t, string(text), "pull the image: €€")
			assert.Contains(t, string(text), `€…"`)
			assert.Equal(t, first, status.Generate(pod("main:c"), r, first, status.NodeInfo{}, testTime), "it does not change")
		})
	}
	st := generate(pod("main:c"), runtime.Report{Observed: view(), Failures: map[string]runtime.Failure{"c": failure("CreateContainerError", "open \xff: denied")}})
	assert.Equal(t, "open \uFFFD: denied", st.ContainerStatuses[0].State.Waiting.Message)
}

// A runtime that reports objects keeps what it reported.
func TestGenerate_ClipsCopiesOfReportedErrors(t *testing.T) {
	huge := strings.Repeat("x", 1<<20)
	object := pod("main:c")
	object.Status = corev1.PodStatus{Phase: corev1.PodPending, Conditions: []corev1.PodCondition{{Type: "Example", Status: corev1.ConditionFalse, Message: huge}}}
	observed := view()
	observed.Object = object
	st := status.Generate(pod("main:c"), runtime.Report{Observed: observed}, corev1.PodStatus{}, status.NodeInfo{RunsPods: true}, testTime)
	i := slices.IndexFunc(st.Conditions, func(c corev1.PodCondition) bool { return c.Type == "Example" })
	require.GreaterOrEqual(t, i, 0)
	assert.Len(t, st.Conditions[i].Message, 4096)
	assert.Equal(t, huge, object.Status.Conditions[0].Message)
}
