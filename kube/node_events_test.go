package kube

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// As with a kubelet, that it starts is an event, and each change of spec.unschedulable.
func TestNode_RecordsStartAndCordon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		events := &recorder{}
		b := startNode(t, NodeConfig{Recorder: events}).run()
		for _, cordoned := range []bool{true, true, false} {
			node := b.get().DeepCopy()
			node.Spec.Unschedulable = cordoned
			_, err := b.client.CoreV1().Nodes().Update(t.Context(), node, metav1.UpdateOptions{})
			require.NoError(t, err)
			b.wait(11 * time.Second)
		}
		assert.Equal(t, []string{"Starting", "NodeNotSchedulable", "NodeSchedulable"}, events.reasons())
	})
}
