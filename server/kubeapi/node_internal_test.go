package kubeapi

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/podspec"
)

// A node whose runtime hangs is shown before the server gives up the request.
func TestRefreshNode_IsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, err := New(Config{NodeName: "edge-1", Pods: func() []*corev1.Pod { return nil }, Node: func(ctx context.Context) (*corev1.Node, error) {
			<-ctx.Done() // as a call of the runtime
			return &corev1.Node{Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Address: "192.0.2.1"}}}}, context.Cause(ctx)
		}})
		require.NoError(t, err)
		began := time.Now()
		require.NoError(t, a.refreshNode(t.Context()))
		assert.Less(t, time.Since(began), 30*time.Second)
		n, ok := a.node.get("", "edge-1").(*corev1.Node)
		require.True(t, ok)
		assert.Equal(t, "192.0.2.1", n.Status.Addresses[0].Address)

		events := NewEvents() // kubectl describe selects those of a Node by its UID
		events.Record(podspec.NewNodeEvent("edge-1", corev1.EventTypeNormal, "Test", "of the node", time.Now()))
		for _, stored := range events.collection.items {
			e, ok := stored.raw.(*corev1.Event)
			require.True(t, ok)
			assert.Equal(t, n.UID, e.InvolvedObject.UID)
		}
		assert.Len(t, events.collection.items, 1)
	})
}
