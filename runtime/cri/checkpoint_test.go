package cri

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/runtime"
)

// A checkpoint gets its timeout, in seconds, and the call a little more.
func TestClient_CheckpointContainer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		c := f.client(t, Config{Timeout: time.Minute})
		pod := onePod("main")
		require.Empty(t, c.Apply(t.Context(), pod, startAll(pod), runtime.RunOptions{}).Failures)
		observed, err := c.Pod(t.Context(), pod.UID)
		require.NoError(t, err)
		id := observed.Containers[0].ID
		var requests []*v1.CheckpointContainerRequest
		var limits []time.Duration
		f.setBefore(func(ctx context.Context, _ string, request any) error {
			if r, ok := request.(*v1.CheckpointContainerRequest); ok {
				requests = append(requests, r)
				until, _ := ctx.Deadline()
				limits = append(limits, time.Until(until))
			}
			return nil
		})
		// The fake does not know the call, as a runtime without CRIU.
		require.ErrorIs(t, c.CheckpointContainer(t.Context(), id, "/checkpoints/a.tar", 0), runtime.ErrUnsupported)
		require.Error(t, c.CheckpointContainer(t.Context(), id, "/checkpoints/a.tar", 10*time.Second))
		require.Len(t, requests, 2)
		assert.Equal(t, []any{id, "/checkpoints/a.tar", int64(60)}, []any{requests[0].ContainerId, requests[0].Location, requests[0].Timeout})
		assert.EqualValues(t, 10, requests[1].Timeout)
		assert.Equal(t, []time.Duration{65 * time.Second, 15 * time.Second}, limits)
	})
}
