package agent_test

import (
	"context"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent"
	"github.com/sublet-dev/agent/containergc"
	"github.com/sublet-dev/agent/imagegc"
	"github.com/sublet-dev/agent/internal/agenttest"
	"github.com/sublet-dev/agent/node"
	"github.com/sublet-dev/agent/podsource"
	"github.com/sublet-dev/agent/runtime"
	"github.com/sublet-dev/agent/runtime/cri"
	"github.com/sublet-dev/agent/runtime/embedded"
)

// CG-1, CG-2: under KeepUntilReplaced the last exited container is kept while it decides
// whether to restart, and removed when the next one runs. Init containers do not run
// twice because of it.
func TestOnlyWhatDecidesIsKept(t *testing.T) {
	inside(t, func(t *testing.T, _ *embedded.Runtime, client *cri.Client, start func(...agent.Option) *agent.Agent) {
		var statuses agenttest.Statuses
		pod := agenttest.SizedPod("crash", "1Mi", "0s=1Mi")
		pod.Annotations["sim.sublet.dev/run-for"] = "20s"
		pod.Annotations["sim.sublet.dev/exit-code"] = "3"
		first := pod.Spec.Containers[0].DeepCopy()
		first.Name = "first"
		pod.Annotations["first.sim.sublet.dev/run-for"] = "1s"
		pod.Annotations["first.sim.sublet.dev/exit-code"] = "0"
		pod.Spec.InitContainers = []corev1.Container{*first}
		start(
			agent.WithSource("memory", podsource.NewMemory(pod)), agent.WithStatusSink(&statuses),
			agent.WithConfig(containergc.Config{Policy: containergc.Policy{MaxPerPodContainer: containergc.KeepUntilReplaced}}),
		)
		ran, waited := 0, 0
		for range 300 {
			time.Sleep(5 * time.Second)
			p, err := client.Pod(t.Context(), pod.UID)
			require.NoError(t, err)
			dead, runs := 0, false
			for _, c := range p.Containers {
				if c.Name == "first" {
					require.Zero(t, c.Attempt, "it has done its work")
					continue
				}
				runs = runs || c.State == runtime.Running && time.Since(c.Started) > time.Second
				if c.State == runtime.Exited {
					dead++
				}
			}
			require.LessOrEqual(t, dead, 1)
			if runs {
				require.Zero(t, dead, "it decides nothing any more")
				ran++
			} else {
				waited++
			}
		}
		require.Greater(t, ran, 10)
		require.Greater(t, waited, 10)
		require.Greater(t, statuses.Of("crash").ContainerStatuses[0].RestartCount, int32(5))
	})
}

// IG-3: an agent starts with a truncated file of image records, reports the loss, and
// removes no image because of it. With a complete file it knows the age of the image.
func TestAFileOfAgesThatWasCut(t *testing.T) {
	inside(t, func(t *testing.T, _ *embedded.Runtime, client *cri.Client, _ func(...agent.Option) *agent.Agent) {
		require.NoError(t, pull(t, client, "unused:1"))
		records := filepath.Join(t.TempDir(), "images.json")
		unlimited := imagegc.Policy{HighThresholdPercent: 100, LowThresholdPercent: 99} // however full this disk is
		c, err := imagegc.New(imagegc.Config{Images: client, RecordsFile: records, Policy: unlimited})
		require.NoError(t, err)
		_, err = c.Collect(t.Context())
		require.NoError(t, err)
		text, err := os.ReadFile(records)
		require.NoError(t, err)
		time.Sleep(2 * time.Hour)
		policy := unlimited
		policy.MaxAge = time.Hour
		var lost, removed atomic.Int32
		run := func(n int, check func(*agent.Agent)) {
			root := t.TempDir()
			require.NoError(t, os.WriteFile(filepath.Join(root, "images.json"), text[:n], 0o600))
			a, err := agent.New(
				agent.WithNodeName("node"), agent.WithRuntime(client), agent.WithRootDir(root), agent.WithNode(node.Config{DisableCgroups: true}),
				agent.WithSource("memory", podsource.NewMemory()), agent.WithConfig(imagegc.Config{Policy: policy}),
				agent.WithHooks(agent.Hooks{ImageGC: imagegc.Hooks{
					RecordsLost: func(error) { lost.Add(1) },
					Removed:     func(runtime.Image, imagegc.Reason, time.Duration, error) { removed.Add(1) },
				}}),
			)
			require.NoError(t, err)
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() { done <- a.Run(ctx) }()
			time.Sleep(5 * time.Second)
			require.NoError(t, a.Healthy())
			check(a)
			cancel()
			require.NoError(t, <-done)
		}
		cuts := 0
		for n := 0; n < len(text)-1; n += 9 {
			cuts++
			run(n, func(a *agent.Agent) {
				require.Equal(t, int32(cuts), lost.Load(), "cut at %d", n)
				choices, err := a.ExplainImages(t.Context(), true)
				require.NoError(t, err)
				require.Equal(t, imagegc.ReasonMinAge, choices[0].Reason, "cut at %d", n)
			})
		}
		require.Zero(t, removed.Load())
		run(len(text), func(*agent.Agent) { require.Equal(t, int32(1), removed.Load()) })
		require.Equal(t, int32(cuts), lost.Load(), "a complete file is no loss")
	})
}

// A dry run says why, and says nothing where there is nothing to ask.
func TestExplain(t *testing.T) {
	inside(t, func(t *testing.T, _ *embedded.Runtime, client *cri.Client, start func(...agent.Option) *agent.Agent) {
		none, err := start(agent.WithSource("memory", podsource.NewMemory())).ExplainImages(t.Context(), true)
		require.NoError(t, err)
		require.Empty(t, none)

		a := start(
			agent.WithSource("memory", podsource.NewMemory(agenttest.SizedPod("web", "1Mi", "0s=1Mi"))), agent.WithConfig(imagegc.Config{}),
			agent.WithConfig(containergc.Config{Policy: containergc.Policy{MaxPerPodContainer: containergc.KeepAll}}),
		)
		_, err = a.ExplainImages(t.Context(), true)
		require.Error(t, err, "too early")
		time.Sleep(10 * time.Second)
		choices, err := a.ExplainImages(t.Context(), true)
		require.NoError(t, err)
		require.Len(t, choices, 1)
		require.Equal(t, imagegc.ReasonInUse, choices[0].Reason)
		dead, err := a.ExplainContainers(t.Context())
		require.NoError(t, err)
		require.Empty(t, dead)
		left, err := client.Images(t.Context())
		require.NoError(t, err)
		require.Len(t, left, 1)
	})
}
