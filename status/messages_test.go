package status_test

import (
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
