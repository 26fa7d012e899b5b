package agent_test

import (
	"context"
	"encoding/json"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent"
	"github.com/sublet-dev/agent/internal/agenttest"
	"github.com/sublet-dev/agent/node"
	"github.com/sublet-dev/agent/podsource"
	"github.com/sublet-dev/agent/podspec"
)

// busyVolumes are Volumes that cannot be unmounted while err is set.
type busyVolumes struct {
	agent.Volumes
	err     error
	unmount chan types.UID
}

func (v *busyVolumes) Unmount(ctx context.Context, uid types.UID) error {
	if v.err != nil {
		return v.err
	}
	v.unmount <- uid
	return v.Volumes.Unmount(ctx, uid)
}

func asJSON(t *testing.T, status corev1.PodStatus) string {
	t.Helper()
	b, err := json.MarshalIndent(status, "", " ")
	require.NoError(t, err)
	return string(b)
}

// ST-7, AG-4, PS-4: what a process could neither release nor report of a pod that has ended,
// the next one releases and reports.
func TestAgent_CompletesTheEndOfAPod(t *testing.T) {
	for name, pod := range map[string]*corev1.Pod{
		"completed": agenttest.PodWithPolicy("web", corev1.RestartPolicyNever, "run-for=1s"),
		"evicted":   agenttest.Pod("web"),
	} {
		t.Run(name, func(t *testing.T) {
			agenttest.OnMachine(t, node.Config{}, func(t *testing.T, n *agenttest.Machine) {
				volumes := &busyVolumes{err: errors.New("device or resource busy"), unmount: make(chan types.UID, 10)}
				start := func(opts ...agent.Option) *agenttest.Process {
					return n.Start(append(opts, agent.WithSource("http", podsource.NotStatic(podsource.NewMemory(pod))),
						agent.WithVolumes(func(c *agent.Components) (_ agent.Volumes, err error) {
							volumes.Volumes, err = agent.NewVolumes(c)
							return volumes, err
						}))...)
				}
				a := start()
				time.Sleep(time.Minute)
				if name == "evicted" {
					ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
					defer cancel()
					require.ErrorIs(t, a.Evict(ctx, "default", "web", time.Second), context.DeadlineExceeded, "it is not over")
				}
				before, err := a.Pod("default", "web")
				require.NoError(t, err)
				require.True(t, podspec.IsTerminalPhase(before.Status.Phase))
				a.Stop()
				require.Empty(t, volumes.unmount)

				volumes.err = nil
				var statuses agenttest.Statuses
				a = start(agent.WithStatusSink(&statuses))
				time.Sleep(time.Second)
				require.Len(t, volumes.unmount, 1)
				assert.Equal(t, before.UID, <-volumes.unmount)
				assert.Equal(t, asJSON(t, before.Status), asJSON(t, statuses.Of("web")), "the new sink has the pod, and nothing of its status is lost")
				assert.Empty(t, n.Running())
				a.Stop()
				assert.Empty(t, volumes.unmount, "once")
			})
		})
	}
}

// SL-11: a static pod that ends because its manifest was removed starts with the next agent, if the manifest is there
// again: its status says that it has ended, and nothing will change that.
func TestAgent_StartsARemovedStaticPodThatIsBack(t *testing.T) {
	for _, when := range []string{"before the agent stops", "while no agent runs"} {
		t.Run(when, func(t *testing.T) {
			agenttest.OnMachine(t, node.Config{}, func(t *testing.T, n *agenttest.Machine) {
				volumes := &busyVolumes{err: errors.New("device or resource busy"), unmount: make(chan types.UID, 10)}
				pods := podsource.NewMemory(agenttest.Pod("web"))
				start := func() *agenttest.Process {
					return n.Start(agent.WithSource("file", pods), agent.WithVolumes(func(c *agent.Components) (_ agent.Volumes, err error) {
						volumes.Volumes, err = agent.NewVolumes(c)
						return volumes, err
					}))
				}
				a := start()
				time.Sleep(time.Minute)
				pods.Delete("default", "web")
				time.Sleep(time.Minute)
				require.Empty(t, n.Running())
				if when == "before the agent stops" {
					pods.Put(agenttest.Pod("web"))
					time.Sleep(time.Minute)
					require.Empty(t, n.Running(), "it has not released its volumes")
				}
				a.Stop()
				pods.Put(agenttest.Pod("web"))
				volumes.err = nil
				a = start()
				time.Sleep(time.Minute)
				assert.Equal(t, []string{"web"}, n.Running())
				a.Stop()
			})
		})
	}
}
