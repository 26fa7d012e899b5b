package kube

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// KU-8: the pod CIDRs of the Node are passed to the runtime: at each start, when the cluster assigns them, and once more
// after a failure.
func TestNode_PassesPodCIDRs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls := make(chan string, 100)
		var fails atomic.Bool
		update := func(_ context.Context, cidrs []string) error {
			calls <- strings.Join(cidrs, ",")
			if fails.Load() {
				return errors.New("no runtime")
			}
			return nil
		}
		b := startNode(t, NodeConfig{UpdatePodCIDRs: update}).run()
		b.wait(time.Minute)
		assert.Empty(t, calls, "the cluster has assigned none")

		fails.Store(true)
		node := b.get().DeepCopy()
		node.Spec.PodCIDR, node.Spec.PodCIDRs = "10.1.0.0/24", []string{"10.1.0.0/24", "fd00:1::/64"}
		_, err := b.client.CoreV1().Nodes().Update(t.Context(), node, metav1.UpdateOptions{})
		require.NoError(t, err)
		b.wait(31 * time.Second)
		require.Len(t, calls, 3)
		assert.Equal(t, 1, strings.Count(b.log.String(), "no runtime"), "it is logged once")
		fails.Store(false)
		b.wait(time.Hour)
		require.Len(t, calls, 4)
		assert.Equal(t, "10.1.0.0/24,fd00:1::/64", <-calls)
	})
	synctest.Test(t, func(t *testing.T) {
		existing := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}, Spec: corev1.NodeSpec{PodCIDRs: []string{"10.1.0.0/24"}}}
		var calls atomic.Int32
		b := startNode(t, NodeConfig{UpdatePodCIDRs: func(context.Context, []string) error { calls.Add(1); return nil }}, existing).run()
		b.wait(2 * time.Second)
		assert.EqualValues(t, 1, calls.Load())
	})
}
