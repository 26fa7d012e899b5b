package kube_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent"
	"github.com/sublet-dev/agent/internal/kubetest"
	"github.com/sublet-dev/agent/kube"
	"github.com/sublet-dev/agent/node"
)

// ranged is a runtime that takes the pod CIDRs of its node.
type ranged struct {
	agent.Runtime
	cidrs chan []string
}

func (r ranged) Unwrap() any { return r.Runtime }

func (r ranged) UpdatePodCIDRs(_ context.Context, cidrs []string) error {
	r.cidrs <- cidrs
	return nil
}

// The runtime of an agent that is a whole node gets its pod CIDRs.
func TestKube_NodeOptionsPassPodCIDRs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fake := kubetest.NewFake(t)
		registered := &corev1.Node{}
		registered.Name, registered.UID, registered.Spec.PodCIDRs = nodeName, "uid-of-1", []string{"10.1.0.0/24"}
		fake.Put("nodes", registered)
		opts, err := newTestKube(t, fake).NodeOptions(kube.NodeConfig{}, "")
		require.NoError(t, err)
		cidrs := make(chan []string, 10)
		a, err := agent.New(append(opts, agent.WithSimulatedRuntime(), agent.WithRootDir(t.TempDir()),
			agent.WithNode(node.Config{Addresses: func() ([]corev1.NodeAddress, error) { return nil, nil }}),
			agent.WithRuntimeFunc(func(c *agent.Components) (agent.Runtime, error) {
				rt, err := agent.NewRuntime(c)
				return ranged{rt, cidrs}, err
			}))...)
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- a.Run(ctx) }()
		time.Sleep(30 * time.Second)
		cancel()
		require.NoError(t, <-done)
		require.Len(t, cidrs, 1)
		require.Equal(t, []string{"10.1.0.0/24"}, <-cidrs)
	})
}
