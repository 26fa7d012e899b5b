package cri

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sublet-dev/agent/runtime"
)

// The pod ends while garbage collection removes one of its containers, which containerd does not do twice at a time. The
// second removal waits for the first one. One that takes long is left to garbage collection.
func TestRemove_WaitsForAnotherRemoval(t *testing.T) {
	for _, tt := range []struct {
		name, rpc string
		refusals  int
		want      error
		remove    func(c *Client, observed runtime.Pod) error
	}{
		{"a pod", "RemovePodSandbox", 3, nil, func(c *Client, observed runtime.Pod) error { return c.Remove(context.Background(), observed) }},
		{"a pod, for long", "RemovePodSandbox", 1000, runtime.ErrNotRemoved, func(c *Client, observed runtime.Pod) error {
			return c.Remove(context.Background(), observed)
		}},
		{"a container", "RemoveContainer", 3, nil, func(c *Client, observed runtime.Pod) error {
			return c.RemoveContainer(context.Background(), observed.Containers[0].ID)
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f, pod := newFake(), onePod("main")
				c := f.client(t, Config{})
				require.NoError(t, c.Kill(t.Context(), pod, running(t, f, c, pod), runtime.Termination{}))
				observed, err := c.Pod(t.Context(), pod.UID)
				require.NoError(t, err)
				tries := 0
				f.setBefore(func(_ context.Context, rpc string, _ any) error {
					if rpc != tt.rpc {
						return nil
					}
					if tries++; tries > tt.refusals {
						return nil
					}
					return status.Error(codes.Unknown, `failed to set removing state for container "x": container is already in removing state`)
				})
				require.ErrorIs(t, tt.remove(c, observed), tt.want)
				assert.Equal(t, min(tt.refusals, maxNameWaits)+1, tries)
			})
		})
	}
}
