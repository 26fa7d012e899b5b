package kubeapi

import (
	"context"
	"iter"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/podwatch"
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

// kubectl get nodes -w prints a line for each change, and a node is compared each second.
func TestRefreshNode_HeartbeatsAloneAreNoChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ready := corev1.ConditionTrue
		a, err := New(Config{NodeName: "edge-1", Pods: func() []*corev1.Pod { return nil }, Node: func(context.Context) (*corev1.Node, error) {
			return &corev1.Node{Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{
				{Type: corev1.NodeMemoryPressure, Status: corev1.ConditionFalse, LastHeartbeatTime: metav1.Now()},
				{Type: corev1.NodeReady, Status: ready, LastHeartbeatTime: metav1.Now()},
			}}}, nil
		}})
		require.NoError(t, err)
		shown := func() *corev1.Node {
			require.NoError(t, a.refreshNode(t.Context()))
			n, ok := a.node.get("", "edge-1").(*corev1.Node)
			require.True(t, ok)
			return n
		}
		first := shown()
		for range 299 {
			time.Sleep(time.Second)
			assert.Equal(t, first, shown())
		}
		time.Sleep(time.Second)
		second := shown()
		assert.NotEqual(t, first.ResourceVersion, second.ResourceVersion)
		time.Sleep(time.Second)
		ready = corev1.ConditionFalse
		third := shown()
		assert.NotEqual(t, second.ResourceVersion, third.ResourceVersion)
		for _, c := range third.Status.Conditions {
			assert.WithinDuration(t, time.Now(), c.LastHeartbeatTime.Time, 0, "of what is known now")
		}
	})
}

// Each look at a node is work for the runtime, and pods change often.
func TestRun_ChangesOfPodsAreNoneOfTheNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var pods, nodes atomic.Int32
		changed := make(chan struct{})
		a, err := New(Config{
			NodeName: "edge-1",
			Pods:     func() []*corev1.Pod { pods.Add(1); return nil },
			Node:     func(context.Context) (*corev1.Node, error) { nodes.Add(1); return &corev1.Node{}, nil },
			Watch: func(ctx context.Context) iter.Seq[podwatch.Event] {
				return func(yield func(podwatch.Event) bool) {
					for ctx.Err() == nil {
						select {
						case <-ctx.Done():
						case <-changed:
							yield(podwatch.Event{})
						}
					}
				}
			},
		})
		require.NoError(t, err)
		for _, c := range []*collection{a.pods.collection, a.node} {
			_, _, ok := c.watch(nil)
			require.True(t, ok)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { assert.NoError(t, a.Run(ctx)) })
		for range 100 {
			changed <- struct{}{}
			time.Sleep(50 * time.Millisecond)
		}
		synctest.Wait()
		assert.GreaterOrEqual(t, pods.Load(), int32(80))
		assert.InDelta(t, 5, nodes.Load(), 1, "each second")
		cancel()
		wg.Wait()
	})
}
