package agent_test

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent"
	"github.com/sublet-dev/agent/containergc"
	"github.com/sublet-dev/agent/eviction"
	"github.com/sublet-dev/agent/imagegc"
	"github.com/sublet-dev/agent/logrotate"
	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/status"
)

// value returns a constructor of a component that exists, or of none.
func value[T any](v T) agent.Constructor[T] {
	return func(*agent.Components) (T, error) { return v, nil }
}

// AG-2: a constructor finds the components that were built before its own, and none of
// those after it.
func TestNew_BuildsComponentsInOrder(t *testing.T) {
	var called []string
	built := func(name string, c *agent.Components, before, after any) {
		called = append(called, name)
		assert.NotNil(t, before, name)
		assert.Nil(t, after, name)
		assert.Equal(t, "node", c.NodeName)
		assert.Equal(t, "/nowhere", c.RootDir)
		assert.Equal(t, "/nowhere/logs", c.Node.PodLogsDir)
		assert.NotNil(t, c.Logger)
		assert.Empty(t, c.Owner(), "not known before Run")
	}
	_, err := agent.New(
		agent.WithNodeName("node"), agent.WithRootDir("/nowhere"), agent.WithSimulatedRuntime(),
		agent.WithSyncLoop(func(c *agent.Components) (agent.SyncLoop, error) {
			built("SyncLoop", c, c.PodManager, c.SyncLoop)
			return agent.NewSyncLoop(c)
		}),
		agent.WithPodWorkers(func(c *agent.Components) (agent.PodWorkers, error) {
			built("PodWorkers", c, c.Syncer, c.ContainerGC)
			return agent.NewPodWorkers(c)
		}),
		agent.WithPLEG(func(c *agent.Components) (agent.PLEG, error) {
			built("PLEG", c, c.Objects, c.StatusManager)
			return agent.NewPLEG(c)
		}),
		agent.WithRecorderFunc(func(c *agent.Components) (agent.Recorder, error) {
			built("Recorder", c, c, c.Runtime)
			return agent.NewRecorder(c)
		}),
	)
	require.NoError(t, err)
	assert.Equal(t, []string{"Recorder", "PLEG", "PodWorkers", "SyncLoop"}, called)
}

// AG-2: a component that cannot be built, or that others cannot do without, is an error
// of New that names it.
func TestNew_ReportsConstructors(t *testing.T) {
	failed := errors.New("no licence")
	for name, tt := range map[string]struct {
		opts []agent.Option
		want string
	}{
		"fails": {
			[]agent.Option{agent.WithPLEG(func(*agent.Components) (agent.PLEG, error) { return nil, failed })}, "agent: no licence",
		},
		"no constructor":   {[]agent.Option{agent.WithPLEG(nil)}, "PLEG: nil constructor"},
		"given twice":      {[]agent.Option{agent.WithPLEG(agent.NewPLEG), agent.WithPLEG(agent.NewPLEG)}, "PLEG: nil constructor, or set twice"},
		"nothing required": {[]agent.Option{agent.WithPLEG(value[agent.PLEG](nil))}, "option WithPLEG: the constructor returned nil"},
		"stats required":   {[]agent.Option{agent.WithStats(value[agent.Stats](nil))}, "option WithStats: the constructor returned nil"},
		"nothing optional": {[]agent.Option{
			agent.WithImageGC(value[agent.ImageGC](nil)), agent.WithContainerGC(value[agent.ContainerGC](nil)), agent.WithCgroups(value[agent.Cgroups](nil)),
			agent.WithLogRotator(value[agent.LogRotator](nil)), agent.WithEviction(value[agent.Eviction](nil)),
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := agent.New(append(tt.opts, agent.WithNodeName("node"), agent.WithSimulatedRuntime())...)
			if tt.want == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, tt.want)
		})
	}
}

type droppedEvents struct{}

func (droppedEvents) Record(*corev1.Event) {}

type silentStatuses struct{ agent.StatusManager }

type noObjects struct{}

func (noObjects) Object(context.Context, podspec.Ref) (podspec.Object, error) {
	return podspec.Object{}, podspec.ErrObjectNotFound
}

// AG-8: no option overrides another silently. One that configures a default component is
// an error if that is replaced by a component that does not use it.
func TestNew_RejectsOptionsWithoutEffect(t *testing.T) {
	sink := status.SinkFunc(func(context.Context, *corev1.Pod, corev1.PodStatus) error { return nil })
	for want, opts := range map[string][]agent.Option{
		"WithConfig(imagegc.Config)":     {agent.WithConfig(imagegc.Config{}), agent.WithImageGC(value[agent.ImageGC](nil))},
		"WithConfig(containergc.Config)": {agent.WithConfig(containergc.Config{}), agent.WithContainerGC(value[agent.ContainerGC](nil))},
		"WithConfig(logrotate.Config)":   {agent.WithConfig(logrotate.Config{}), agent.WithLogRotator(value[agent.LogRotator](nil))},
		"WithConfig(eviction.Config)":    {agent.WithConfig(eviction.Config{}), agent.WithEviction(value[agent.Eviction](nil))},
		"WithRecorder":                   {agent.WithRecorder(droppedEvents{}), agent.WithRecorderFunc(value[agent.Recorder](droppedEvents{}))},
		"WithObjects":                    {agent.WithObjects(noObjects{}), agent.WithObjectsFunc(value[agent.Objects](noObjects{}))},
		"WithStatusSink":                 {agent.WithStatusSink(sink), agent.WithStatusManager(value[agent.StatusManager](silentStatuses{}))},
		"WithSimulatedRuntime":           {agent.WithRuntimeFunc(value[agent.Runtime](bare{}))},
	} {
		t.Run(want, func(t *testing.T) {
			_, err := agent.New(append(opts, agent.WithNodeName("node"), agent.WithSimulatedRuntime())...)
			require.ErrorContains(t, err, "no effect of "+want+": another option replaces or disables")
		})
	}
}

// A runtime of one's own needs no other option that names one, but a root directory,
// because its pods may outlive the agent.
func TestWithRuntimeFunc_IsARuntime(t *testing.T) {
	own := agent.WithRuntimeFunc(value[agent.Runtime](bare{}))
	_, err := agent.New(agent.WithNodeName("node"), own)
	require.ErrorContains(t, err, "root dir: required")
	_, err = agent.New(agent.WithNodeName("node"), own, agent.WithRootDir("/nowhere"))
	require.NoError(t, err)
}
