package agent_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent"
	"github.com/sublet-dev/agent/imagegc"
	"github.com/sublet-dev/agent/internal/agenttest"
	"github.com/sublet-dev/agent/node"
	"github.com/sublet-dev/agent/podsource"
	"github.com/sublet-dev/agent/status"
)

// sourceFunc is a source that is a function.
type sourceFunc func(ctx context.Context, deliver func(podsource.Set)) error

func (f sourceFunc) Watch(ctx context.Context, deliver func(podsource.Set)) error {
	return f(ctx, deliver)
}

var errNoConnection = errors.New("connection refused")

// offline is a remote source whose server does not respond until back is closed.
func offline(back <-chan struct{}, then podsource.Source) podsource.Source {
	return sourceFunc(func(ctx context.Context, deliver func(podsource.Set)) error {
		deliver(podsource.Set{Incomplete: true, Errors: []podsource.SourceError{{
			Location: "http://manifests.example", Err: fmt.Errorf("%w: %w", podsource.ErrUnavailable, errNoConnection),
		}}})
		select {
		case <-ctx.Done():
			return nil
		case <-back:
			return then.Watch(ctx, deliver)
		}
	})
}

// condition returns the condition of that type, or nil.
func condition(list []corev1.PodCondition, t corev1.PodConditionType) *corev1.PodCondition {
	if i := slices.IndexFunc(list, func(c corev1.PodCondition) bool { return c.Type == t }); i >= 0 {
		return &list[i]
	}
	return nil
}

// SR-10: unknown state is not reported as good. Until a source has synced, the readiness
// of its pods is unknown and the rest is as observed. The agent is not healthy and names
// the source.
func TestAgent_PodsOfAnUnsyncedSourceAreReportedAsObserved(t *testing.T) {
	agenttest.OnMachine(t, node.Config{}, func(t *testing.T, n *agenttest.Machine) {
		memory := podsource.NewMemory(agenttest.Pod("web"))
		a := n.Start(agent.WithSource("http", memory))
		time.Sleep(time.Minute)
		require.NoError(t, a.Healthy())
		require.Equal(t, corev1.ConditionTrue, condition(a.Pods()[0].Status.Conditions, corev1.PodReady).Status)
		a.Stop()

		var statuses agenttest.Statuses
		back := make(chan struct{})
		a = n.Start(agent.WithSource("http", offline(back, memory)), agent.WithStatusSink(&statuses))
		defer a.Stop()
		time.Sleep(time.Minute)
		st := a.Pods()[0].Status
		assert.Equal(t, corev1.PodRunning, st.Phase, "as observed")
		assert.False(t, st.ContainerStatuses[0].Ready)
		ready := condition(st.Conditions, corev1.PodReady)
		assert.Equal(t, corev1.ConditionUnknown, ready.Status)
		assert.Equal(t, status.ReasonNotSynced, ready.Reason)
		assert.Contains(t, ready.Message, "waiting for source http")
		var waits podsource.Unsynced
		require.ErrorAs(t, a.Healthy(), &waits)
		assert.Equal(t, "http", waits.Source)
		require.ErrorIs(t, a.Healthy(), errNoConnection)

		n.StopContainers()
		time.Sleep(time.Hour)
		synctest.Wait()
		st = a.Pods()[0].Status
		require.NotNil(t, st.ContainerStatuses[0].State.Terminated, "as observed")
		assert.False(t, st.ContainerStatuses[0].Ready)
		assert.Zero(t, statuses.Len(), "no status is sent before the source has synced")

		close(back)
		time.Sleep(time.Minute)
		require.NoError(t, a.Healthy())
		assert.Len(t, n.Running(), 1)
		assert.Equal(t, corev1.ConditionTrue, condition(a.Pods()[0].Status.Conditions, corev1.PodReady).Status)
	})
}

// KU-2: a node that boots while its server is unavailable starts its cached pods and keeps
// them running. When the server is available again, deleted pods are terminated.
func TestCachedSource_StartsPodsWithoutItsServer(t *testing.T) {
	agenttest.OnMachine(t, node.Config{}, func(t *testing.T, n *agenttest.Machine) {
		dir := filepath.Join(n.Root, "sources", "http")
		memory := podsource.NewMemory(agenttest.Pod("web"), agenttest.Pod("dropped"))
		a := n.Start(agent.WithSource("http", podsource.Cached(memory, dir)))
		time.Sleep(time.Minute)
		require.Len(t, n.Running(), 2)
		a.Stop()

		shutDown := n.Boot() // a power cut
		defer shutDown()
		back := make(chan struct{})
		a = n.Start(agent.WithSource("http", podsource.Cached(offline(back, memory), dir)))
		defer a.Stop()
		time.Sleep(5 * time.Second)
		require.Len(t, n.Running(), 2)
		require.NoError(t, a.Healthy(), "the cache has synced")
		require.Equal(t, corev1.ConditionTrue, condition(a.Pods()[0].Status.Conditions, corev1.PodReady).Status)
		require.NotEmpty(t, a.SourceErrors(), "the unavailable server is reported")

		n.StopContainers()
		time.Sleep(time.Minute)
		require.Len(t, n.Running(), 2, "exited containers are restarted")

		memory.Delete("default", "dropped")
		close(back)
		time.Sleep(2 * time.Minute)
		require.Len(t, n.Running(), 1)
		require.Empty(t, a.SourceErrors())
	})
}

// IG-6: image garbage collection runs while a source has not synced, which is reported as
// a source error.
func TestImageGC_RunsWhileASourceIsUnsynced(t *testing.T) {
	agenttest.OnMachine(t, node.Config{}, func(t *testing.T, n *agenttest.Machine) {
		var runs []time.Duration
		began := time.Now()
		hooks := agent.Hooks{ImageGC: imagegc.Hooks{Collected: func(imagegc.Result, error) { runs = append(runs, time.Since(began)) }}}
		unsynced := sourceFunc(func(ctx context.Context, _ func(podsource.Set)) error { <-ctx.Done(); return nil })
		a := n.Start(agent.WithSource("http", unsynced), agent.WithSource("file", podsource.NewMemory()), agent.WithConfig(imagegc.Config{}), agent.WithHooks(hooks))
		time.Sleep(time.Hour)
		errs := a.SourceErrors()
		a.Stop()
		require.GreaterOrEqual(t, len(runs), 10)
		require.Greater(t, runs[0], time.Minute, "it waits for the source for a while")
		require.Len(t, errs, 1)
		require.ErrorIs(t, errs[0], podsource.ErrUnavailable)
	})
}

// IG-6: until all sources have synced, images that pods of the previous run used are kept,
// however full the disk is. Afterwards unused images are removed.
func TestImageGC_KeepsImagesOfPreviousRunUntilSourcesSynced(t *testing.T) {
	agenttest.OnMachine(t, node.Config{}, func(t *testing.T, n *agenttest.Machine) {
		collect := agent.WithConfig(imagegc.Config{Policy: imagegc.Policy{MinAge: 1, HighThresholdPercent: 100, LowThresholdPercent: 99}}) // however full this disk is
		a := n.Start(agent.WithSource("http", podsource.NewMemory(agenttest.Pod("web"))), collect)
		time.Sleep(time.Minute)
		a.Stop()
		list, err := n.Runtime.ListPodSandbox(t.Context(), &criv1.ListPodSandboxRequest{})
		require.NoError(t, err)
		for _, s := range list.GetItems() { // only the image is left
			_, err := n.Runtime.RemovePodSandbox(t.Context(), &criv1.RemovePodSandboxRequest{PodSandboxId: s.GetId()})
			require.NoError(t, err)
		}

		back := make(chan struct{})
		a = n.Start(agent.WithSource("http", offline(back, podsource.NewMemory())), collect)
		defer a.Stop()
		time.Sleep(time.Hour)
		choices, err := a.ExplainImages(t.Context(), true)
		require.NoError(t, err)
		require.Len(t, choices, 1)
		assert.Equal(t, imagegc.ReasonLeased, choices[0].Reason)

		close(back)
		time.Sleep(5 * time.Minute)
		choices, err = a.ExplainImages(t.Context(), true)
		require.NoError(t, err)
		require.Len(t, choices, 1)
		assert.Equal(t, imagegc.ReasonUnused, choices[0].Reason)
	})
}

// SR-7, AG-4: a second manifest with the name of a pod that runs does not replace it when the agent is started again.
func TestAgent_DuplicateManifestOverARestart(t *testing.T) {
	agenttest.OnMachine(t, node.Config{}, func(t *testing.T, n *agenttest.Machine) {
		dir := t.TempDir()
		write := func(file, image string) {
			text := "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec:\n  containers:\n  - {name: main, image: " + image + "}\n"
			require.NoError(t, os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600))
		}
		write("web.yaml", "example.com/web:1")
		source := agent.WithSource("file", podsource.File(dir, podsource.FileNotifier(nil)))
		a := n.Start(source)
		time.Sleep(time.Minute)
		containers := func() (ids []string) {
			list, err := n.Runtime.ListContainers(t.Context(), &criv1.ListContainersRequest{})
			require.NoError(t, err)
			for _, c := range list.GetContainers() {
				ids = append(ids, c.GetId())
			}
			return ids
		}
		before := containers()
		require.Len(t, before, 1)
		a.Stop()

		write("copy.yaml", "example.com/web:2")
		a = n.Start(source)
		defer a.Stop()
		time.Sleep(time.Minute)
		assert.Equal(t, before, containers())
		require.Len(t, n.Running(), 1)
		require.Len(t, a.SourceErrors(), 1)
		assert.Contains(t, a.SourceErrors()[0].Error(), "copy.yaml: pod default/web-node rejected")
	})
}
