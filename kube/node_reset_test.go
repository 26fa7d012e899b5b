package kube

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Pods must not be scheduled for devices of a machine that was installed again: its plugins have not registered.
func TestNode_ResetsExtendedResources(t *testing.T) {
	for isNew, want := range map[bool]int64{true: 0, false: 8} {
		synctest.Test(t, func(t *testing.T) {
			had := corev1.ResourceList{"example.com/gpu": resource.MustParse("8"), "node.kubernetes.io/x": resource.MustParse("3")}
			existing := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "u"}, Status: corev1.NodeStatus{Capacity: had, Allocatable: had}}
			b := startNode(t, NodeConfig{ResetExtendedResources: func() bool { return isNew }}, existing).run()
			b.wait(15 * time.Second)
			st := b.get().Status
			assert.Equal(t, want, st.Capacity.Name("example.com/gpu", resource.DecimalSI).Value())
			assert.Equal(t, want, st.Allocatable.Name("example.com/gpu", resource.DecimalSI).Value())
			assert.Equal(t, int64(3), st.Allocatable.Name("node.kubernetes.io/x", resource.DecimalSI).Value())
			assert.False(t, st.Capacity.Cpu().IsZero(), "ours")

			changed := b.get()
			changed.Status.Capacity["example.com/gpu"] = resource.MustParse("5") // by an administrator, later
			_, err := b.client.CoreV1().Nodes().UpdateStatus(t.Context(), changed, metav1.UpdateOptions{})
			assert.NoError(t, err)
			b.wait(15 * time.Second)
			assert.Equal(t, int64(5), b.get().Status.Allocatable.Name("example.com/gpu", resource.DecimalSI).Value())
		})
	}
}
