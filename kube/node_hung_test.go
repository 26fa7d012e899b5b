package kube_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/internal/kubetest"
	"github.com/sublet-dev/agent/kube"
)

// hungReporter is the reporter of a node whose runtime stops answering.
type hungReporter struct{ hung atomic.Bool }

func (r *hungReporter) At(ctx context.Context, _ time.Time) (corev1.NodeStatus, error) {
	status := corev1.NodeStatus{Conditions: r.Conditions()}
	if r.hung.Load() {
		<-ctx.Done() // as a list of its images
		return status, ctx.Err()
	}
	return status, nil
}

func (r *hungReporter) Conditions() []corev1.NodeCondition {
	ready := corev1.ConditionTrue
	if r.hung.Load() {
		ready = corev1.ConditionFalse
	}
	return []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready, Reason: "Test"}}
}

// A runtime that answers nothing any more must not keep the Node from being reported as not Ready.
func TestNode_ReportsARuntimeThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fake := kubetest.NewFake(t)
		reporter := &hungReporter{}
		n, err := newTestKube(t, fake).Node(kube.NodeConfig{Reporter: reporter})
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- n.Run(ctx) }()
		ready := func() corev1.ConditionStatus {
			synctest.Wait()
			node := fake.Node(nodeName)
			require.NotNil(t, node)
			require.Len(t, node.Status.Conditions, 1)
			return node.Status.Conditions[0].Status
		}
		time.Sleep(5 * time.Second)
		require.Equal(t, corev1.ConditionTrue, ready())
		reporter.hung.Store(true)
		time.Sleep(15 * time.Second)
		assert.Equal(t, corev1.ConditionFalse, ready())
		reporter.hung.Store(false)
		time.Sleep(15 * time.Second)
		assert.Equal(t, corev1.ConditionTrue, ready())
		cancel()
		require.NoError(t, <-done)
	})
}
