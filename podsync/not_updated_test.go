package podsync_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/runtime"
)

// PS-6: the containers of a pod are started again although a ConfigMap of a mounted volume was deleted.
// An event says that the volume is not updated.
func TestSync_GoesOnWithContentThatIsNotUpdated(t *testing.T) {
	n := &fakeNode{phase: corev1.PodRunning, fail: map[string]error{"mount": fmt.Errorf("ConfigMap default/c: %w", runtime.ErrNotUpdated)}}
	s, p := newSyncer(t, newConfig(t, n)), newTestPod()
	observed := podThatRuns(p)
	observed.Containers[0].State, observed.Containers[0].ExitCode = runtime.Exited, 1
	observed.Containers[0].Finished = time.Now()
	for range 2 {
		_, err := s.Sync(t.Context(), p, observed)
		require.NoError(t, err)
	}
	require.Len(t, n.plan, 1)
	assert.Equal(t, runtime.StartContainer, n.plan[0].Type)
	assert.Equal(t, "/somewhere", n.opts.Volumes["data"].HostPath)
	require.Equal(t, []string{"FailedMount"}, reasons(n.events))
	assert.Contains(t, n.events[0].Message, "ConfigMap default/c: not updated, what is mounted stays")
}
