package agent_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/sublet-dev/agent"
	"github.com/sublet-dev/agent/internal/agenttest"
	"github.com/sublet-dev/agent/podsource"
)

type runnerFunc func(ctx context.Context) error

func (f runnerFunc) Run(ctx context.Context) error { return f(ctx) }

// notingPLEG notes when it has stopped.
type notingPLEG struct {
	agent.PLEG
	stopped *[]string
}

func (p notingPLEG) Run(ctx context.Context) error {
	err := p.PLEG.Run(ctx)
	*p.stopped = append(*p.stopped, "pleg")
	return err
}

// A runner is constructed after all components, and is stopped when no pod is worked on any
// more.
func TestWithRunner_RunsUntilAllElseHasStopped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var statuses agenttest.Statuses
		ctx, cancel := context.WithCancel(t.Context())
		var stopped []string
		a, err := agent.New(
			agent.WithNodeName("node"), agent.WithSimulatedRuntime(), agent.WithStatusSink(&statuses),
			agent.WithSource("memory", podsource.NewMemory()),
			agent.WithPLEG(func(c *agent.Components) (agent.PLEG, error) {
				p, err := agent.NewPLEG(c)
				return notingPLEG{p, &stopped}, err
			}),
			agent.WithRunner("own", func(c *agent.Components) (agent.Runner, error) {
				require.NotNil(t, c.SyncLoop)
				return runnerFunc(func(ctx context.Context) error {
					<-ctx.Done()
					stopped = append(stopped, "own")
					return nil
				}), nil
			}),
		)
		require.NoError(t, err)
		done := make(chan error, 1)
		go func() { done <- a.Run(ctx) }()
		synctest.Wait()
		cancel()
		require.NoError(t, <-done)
		require.Equal(t, []string{"pleg", "own"}, stopped)
	})
}

func TestWithRunner_Errors(t *testing.T) {
	for name, tc := range map[string]struct {
		runner agent.Option
		want   string
	}{
		"no constructor": {agent.WithRunner("own", nil), `runner "own": name and constructor required`},
		"failed constructor": {agent.WithRunner("own", func(*agent.Components) (agent.Runner, error) {
			return nil, errors.New("no client")
		}), `runner "own": no client`},
		"no runner": {agent.WithRunner("own", func(*agent.Components) (agent.Runner, error) { return nil, nil }), `runner "own": the constructor returned nil`},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := agent.New(agent.WithNodeName("node"), agent.WithSimulatedRuntime(), tc.runner)
			require.ErrorContains(t, err, tc.want)
		})
	}
}

// A runner that returns ends the agent, like a component.
func TestWithRunner_FailureEndsAgent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, err := agent.New(agent.WithNodeName("node"), agent.WithSimulatedRuntime(),
			agent.WithRunner("own", func(*agent.Components) (agent.Runner, error) {
				return runnerFunc(func(context.Context) error { return nil }), nil
			}))
		require.NoError(t, err)
		require.ErrorIs(t, a.Run(t.Context()), agent.ErrComponentExited)
	})
}
