package agent_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sublet-dev/agent"
	"github.com/sublet-dev/agent/internal/agenttest"
	"github.com/sublet-dev/agent/node"
	"github.com/sublet-dev/agent/podsource"
)

// SR-7, AG-4: of two pods of two sources with one full name the one that runs is not ended because the other source is the
// first one after a restart.
func TestAgent_DuplicateNameOfTwoSourcesOverARestart(t *testing.T) {
	agenttest.OnMachine(t, node.Config{}, func(t *testing.T, n *agenttest.Machine) {
		first, second := agenttest.SizedPod("web", "1Mi", "0s=1Mi"), agenttest.SizedPod("web", "1Mi", "0s=1Mi")
		first.UID, second.UID = "first", "second"
		slow, fast := podsource.NotStatic(podsource.NewMemory(first)), podsource.NewMemory()
		var statuses agenttest.Statuses
		a := n.Start(agent.WithSource("slow", slow), agent.WithSource("fast", fast), agent.WithStatusSink(&statuses))
		time.Sleep(time.Minute)
		fast.Put(second)
		time.Sleep(time.Minute)
		require.Len(t, n.Running(), 1)
		started := statuses.Of("web").ContainerStatuses[0]
		require.NotNil(t, started.State.Running)
		a.Stop()

		back := make(chan struct{})
		a = n.Start(agent.WithSource("slow", podsource.NotStatic(offline(back, podsource.NewMemory(first)))), agent.WithSource("fast", fast), agent.WithStatusSink(&statuses))
		defer a.Stop()
		time.Sleep(time.Hour)
		require.Len(t, n.Running(), 1)
		assert.Equal(t, started.ContainerID, statuses.Of("web").ContainerStatuses[0].ContainerID)
		close(back)
		synctest.Wait()
		time.Sleep(10 * time.Minute)
		require.Len(t, n.Running(), 1)
		assert.Equal(t, started.ContainerID, statuses.Of("web").ContainerStatuses[0].ContainerID)
		require.Len(t, a.SourceErrors(), 1)
		assert.ErrorContains(t, a.SourceErrors()[0], "pod default/web rejected: full name web_default already used by pod default/web of source slow")
	})
}
