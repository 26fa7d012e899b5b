package agent_test

import (
	"bytes"
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sublet-dev/agent"
	"github.com/sublet-dev/agent/containergc"
	"github.com/sublet-dev/agent/eviction"
	"github.com/sublet-dev/agent/imagegc"
	"github.com/sublet-dev/agent/internal/agenttest"
	"github.com/sublet-dev/agent/logrotate"
	"github.com/sublet-dev/agent/node"
	"github.com/sublet-dev/agent/podsource"
	"github.com/sublet-dev/agent/runtime/cri"
	"github.com/sublet-dev/agent/runtime/embedded/simulated"
)

// traced decorates a runtime, as a user does to add tracing or metrics.
type traced struct{ agent.Runtime }

func (t traced) Unwrap() any { return t.Runtime }

// New fails if an option needs a capability that the runtime lacks, and names both. A
// decorator that can be unwrapped has all capabilities of its runtime. AG-7
func TestNew_NamesMissingCapabilities(t *testing.T) {
	for want, option := range map[string]agent.Option{
		"WithConfig(containergc.Config): the runtime is no runtime.ContainerRemover": agent.WithConfig(containergc.Config{}),
		"WithConfig(logrotate.Config): the runtime is no runtime.LogReopener":        agent.WithConfig(logrotate.Config{}),
		"WithConfig(imagegc.Config): the runtime is no runtime.ImageStore":           agent.WithConfig(imagegc.Config{}),
		"WithConfig(eviction.Config): the runtime is no runtime.ImageFSReporter":     agent.WithConfig(eviction.Config{}),
		"WithAdoption: the runtime is no runtime.OwnerSetter":                        agent.WithAdoption("file"),
	} {
		for name, rt := range map[string]agent.Runtime{"hidden": bare{new(cri.Client)}, "decorated": traced{new(cri.Client)}} {
			_, err := agent.New(agent.WithRuntime(rt), agent.WithRootDir("/nowhere"), option)
			if name == "hidden" {
				require.ErrorContains(t, err, want)
			} else {
				require.NoError(t, err, want)
			}
		}
	}
	_, err := agent.New(agent.WithRuntime(bare{}), agent.WithRootDir("/nowhere"), agent.WithConfig(logrotate.Config{MaxSize: -1}),
		agent.WithConfig(eviction.Config{Usage: &agenttest.Node{}}))
	require.NoError(t, err, "no option needs a capability")
}

// Garbage collection and ownership work with a decorated runtime. Missing capabilities
// are logged once. AG-7
func TestAgent_KeepsTheCapabilitiesOfADecoratedRuntime(t *testing.T) {
	sharing(t, func(t *testing.T, r *shared) {
		for name, wrap := range map[string]func(agent.Runtime) agent.Runtime{
			"decorated": func(rt agent.Runtime) agent.Runtime { return traced{rt} },
			"hidden":    func(rt agent.Runtime) agent.Runtime { return bare{rt} },
		} {
			pod := agenttest.SizedPod("crash-"+name, "1Mi", "0s=1Mi")
			pod.Annotations[simulated.ScriptPrefix+"run-for"], pod.Annotations[simulated.ScriptPrefix+"exit-code"] = "2s", "1"
			client, err := cri.New(r.cc, cri.Config{Owner: name})
			require.NoError(t, err)
			var logs bytes.Buffer
			a, err := agent.New(
				agent.WithNodeName("node"), agent.WithRootDir(t.TempDir()), agent.WithRuntime(wrap(client)), agent.WithNode(node.Config{DisableCgroups: true}),
				agent.WithSource("memory", podsource.NewMemory(pod)), agent.WithLogger(slog.New(slog.NewTextHandler(&logs, nil))),
			)
			require.NoError(t, err)
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Hour)
			require.NoError(t, a.Run(ctx))
			cancel()
			observed, err := client.Pod(t.Context(), pod.UID)
			require.NoError(t, err)
			if name == "decorated" {
				assert.LessOrEqual(t, len(observed.Containers), 3)
				assert.NotContains(t, logs.String(), "runtime lacks capabilities")
			} else {
				assert.Greater(t, len(observed.Containers), 20, "none is removed")
				assert.Equal(t, 1, bytes.Count(logs.Bytes(), []byte("runtime lacks capabilities")))
				assert.Contains(t, logs.String(), "ContainerRemover")
			}
		}
	})
}
