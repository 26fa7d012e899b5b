package agent_test

import (
	"context"
	"os"
	"path/filepath"
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

// OP-6: a pod of the previous process of which this one has nothing to report, because it is neither desired nor in the
// runtime, was among the pods of the agent until its source synced. Watchers learn that it is gone.
func TestAgent_WatchYieldsDeletionsFromTimeWithoutAgent(t *testing.T) {
	agenttest.OnMachine(t, node.Config{}, func(t *testing.T, n *agenttest.Machine) {
		a := n.Start(agent.WithSource("api", podsource.NewMemory(agenttest.Pod("web"))))
		time.Sleep(time.Minute)
		a.Stop()
		defer n.Boot()()

		back := make(chan struct{})
		a = n.Start(agent.WithSource("api", offline(back, podsource.NewMemory())))
		defer a.Stop()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var got []string
		go func() {
			for e := range a.Watch(ctx) {
				got = append(got, string(e.Type)+" "+e.Pod.Name)
			}
		}()
		time.Sleep(time.Minute)
		require.Len(t, a.Pods(), 1)
		close(back)
		time.Sleep(time.Minute)
		synctest.Wait()
		require.Empty(t, a.Pods())
		assert.Equal(t, []string{"DELETED web"}, got)
	})
}

// SR-8: what a pod has left that was removed while no agent ran is removed although another source has not synced, for
// example because one of its manifests is invalid.
func TestAgent_RemovesWhatIsLeftWhileAnotherSourceHasNotSynced(t *testing.T) {
	agenttest.OnMachine(t, node.Config{}, func(t *testing.T, n *agenttest.Machine) {
		kept, removed, other := agenttest.Pod("kept"), agenttest.Pod("removed"), agenttest.Pod("other")
		kept.UID, removed.UID, other.UID = "kept", "removed", "other"
		a := n.Start(agent.WithSource("file", podsource.NewMemory(other)), agent.WithSource("api", podsource.NewMemory(kept, removed)))
		time.Sleep(time.Minute)
		a.Stop()
		defer n.Boot()()

		left := func() (pods, dirs []string) {
			for _, pod := range a.Pods() {
				pods = append(pods, pod.Name)
			}
			entries, err := os.ReadDir(filepath.Join(n.Root, "pods"))
			require.NoError(t, err)
			for _, e := range entries {
				dirs = append(dirs, e.Name())
			}
			return pods, dirs
		}
		back := make(chan struct{})
		a = n.Start(agent.WithSource("file", offline(back, podsource.NewMemory())), agent.WithSource("api", podsource.NewMemory(kept)))
		defer a.Stop()
		time.Sleep(time.Minute)
		pods, dirs := left()
		assert.ElementsMatch(t, []string{"kept", "other"}, pods)
		assert.Equal(t, []string{"kept", "other"}, dirs)
		close(back)
		time.Sleep(time.Minute)
		synctest.Wait()
		pods, dirs = left()
		assert.Equal(t, []string{"kept"}, pods)
		assert.Equal(t, []string{"kept"}, dirs)
	})
}
