package runtimestate_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sublet-dev/agent/runtime"
	"github.com/sublet-dev/agent/runtimestate"
)

type rt struct {
	calls  int
	health runtime.Status
	err    error
}

func (r *rt) Status(context.Context) (runtime.Status, error) { r.calls++; return r.health, r.err }

func well() *rt { return &rt{health: runtime.Status{RuntimeReady: true, NetworkReady: true}} }

// A pod that runs must be known before anything is decided: AG-4.
func TestNotReadyBeforeWhatRunsIsKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := runtimestate.New(well())
		require.ErrorIs(t, c.Ready(t.Context()), runtimestate.ErrPodsNotListed)
		c.Relisted(0, 3, 2, nil)
		require.ErrorIs(t, c.Ready(t.Context()), runtimestate.ErrPodsNotListed)
		c.Inspected("a", 0, 0, nil)
		c.Inspected("a", 0, 0, nil)
		require.ErrorIs(t, c.Ready(t.Context()), runtimestate.ErrPodsNotListed)
		<-c.Recheck()
		c.Inspected("b", 0, 0, errors.New("a fault of that pod alone"))
		<-c.Recheck()
		require.NoError(t, c.Ready(t.Context()))
	})
}

func TestReady_HungPodDelaysStartupBriefly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := runtimestate.New(well())
		c.Relisted(0, 1, 1, nil)
		require.Error(t, c.Ready(t.Context()))
		time.Sleep(5 * time.Second)
		require.NoError(t, c.Ready(t.Context()))
	})
}

func TestAnIdleNodeIsAskedEveryTwoMinutes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := well()
		c := runtimestate.New(r)
		c.Relisted(0, 0, 0, nil)
		for range 120 { // ten minutes
			require.NoError(t, c.Ready(t.Context()))
			time.Sleep(5 * time.Second)
		}
		require.Equal(t, 5, r.calls)
	})
}

func TestReady_RechecksAfterFailure(t *testing.T) {
	for name, doubt := range map[string]func(*runtimestate.Tracker){
		"a failed listing": func(c *runtimestate.Tracker) { c.Relisted(0, 0, 0, errors.New("gone")) },
		"a broken stream":  func(c *runtimestate.Tracker) { c.StreamChanged(false, errors.New("gone")) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := well()
				c := runtimestate.New(r)
				c.Relisted(0, 0, 0, nil)
				require.NoError(t, c.Ready(t.Context()))
				<-c.Recheck()
				r.err = errors.New("connection refused")
				require.NoError(t, c.Ready(t.Context()), "nothing spoke against it")
				doubt(c)
				<-c.Recheck()
				require.ErrorIs(t, c.Ready(t.Context()), r.err)
				r.err = nil
				require.NoError(t, c.Ready(t.Context()), "and at once when it is back")
			})
		})
	}
}

func TestReady_ErrorHasConditionMessage(t *testing.T) {
	r := well()
	c := runtimestate.New(r)
	c.Relisted(0, 0, 0, nil)
	require.ErrorIs(t, c.Network(), runtimestate.ErrNetworkNotReady, "before anything was heard")
	r.health.NetworkReady = false
	r.health.Conditions = []runtime.Condition{{Type: "NetworkReady", Reason: "NetworkPluginNotReady", Message: "cni plugin not initialized"}}
	require.NoError(t, c.Ready(t.Context()), "pods on the host's network can run")
	require.ErrorContains(t, c.Network(), "cni plugin not initialized")
	r.health.NetworkReady = true
	require.NoError(t, c.Ready(t.Context()))
	require.NoError(t, c.Network())
	r.health.RuntimeReady = false
	c.StreamChanged(false, nil)
	require.ErrorIs(t, c.Ready(t.Context()), runtimestate.ErrRuntimeNotReady)
	c.StreamChanged(false, runtime.ErrUnsupported)
}

func ExampleTracker() {
	c := runtimestate.New(well())
	fmt.Println(c.Ready(context.Background()))
	c.Relisted(time.Millisecond, 0, 0, nil)
	fmt.Println(c.Ready(context.Background()))
	// Output:
	// runtime pods not listed yet
	// <nil>
}

// podSyncer is a runtime of whole pods.
type podSyncer struct {
	rt
	runtime.PodSyncer
}

// The groups of a pod are only restricted if the runtime does it.
func TestStrictGroups(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := well()
		r.health.Name = "containerd"
		c := runtimestate.New(r)
		require.True(t, c.StrictGroups(), "not known yet")
		require.Error(t, c.Ready(t.Context()))
		require.False(t, c.StrictGroups())
		r.health.SupplementalGroupsPolicy = true
		time.Sleep(2 * time.Minute)
		require.Error(t, c.Ready(t.Context()))
		require.True(t, c.StrictGroups())
		syncer := &podSyncer{rt: rt{health: runtime.Status{Name: "pods", RuntimeReady: true}}}
		c = runtimestate.New(syncer)
		require.Error(t, c.Ready(t.Context()))
		require.True(t, c.StrictGroups())
	})
}

// Healthy returns the error of the last Ready until Ready succeeds.
func TestHealthy_ReturnsLastResult(t *testing.T) {
	r := well()
	c := runtimestate.New(r)
	require.ErrorIs(t, c.Healthy(), runtimestate.ErrNetworkNotReady, "before anything was heard")
	c.Relisted(0, 0, 0, nil)
	require.NoError(t, c.Ready(t.Context()))
	require.NoError(t, c.Healthy())
	r.err = errors.New("connection refused")
	c.StreamChanged(false, r.err)
	require.Error(t, c.Ready(t.Context()))
	require.ErrorIs(t, c.Healthy(), r.err)
	r.err = nil
	require.NoError(t, c.Ready(t.Context()))
	require.NoError(t, c.Healthy())
}
