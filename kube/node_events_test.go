package kube

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/podspec"
)

// Clients such as kubectl describe find the events of a Node by its UID.
func TestEvents_NodeHasItsUID(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := startNode(t, NodeConfig{}, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "u"}})
		events := b.node.kube.events
		recordedUID := func(node string) types.UID {
			events.Record(podspec.NewNodeEvent(node, corev1.EventTypeNormal, "NodeReady", "ready", time.Now()))
			return events.next().InvolvedObject.UID
		}
		assert.Empty(t, recordedUID("n"), "it is not known yet")
		b.run()
		assert.Equal(t, types.UID("u"), recordedUID("n"))
		assert.Empty(t, recordedUID("m"))
	})
}

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
