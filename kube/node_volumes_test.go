package kube

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// VD-7: a volume that a previous process reported in use is not detached while this one does not know its own.
func TestNode_KeepsVolumesInUseThatAreUnknown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var inUse atomic.Pointer[[]corev1.UniqueVolumeName]
		inUse.Store(new([]corev1.UniqueVolumeName))
		report := func(names []corev1.UniqueVolumeName) { inUse.Store(&names) }
		previous := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}
		previous.Status.VolumesInUse = []corev1.UniqueVolumeName{"a"}
		b := startNode(t, NodeConfig{StatusPeriod: time.Second, VolumesInUse: func() []corev1.UniqueVolumeName { return *inUse.Load() }}, previous).run()
		b.wait(time.Minute)
		assert.Equal(t, []corev1.UniqueVolumeName{"a"}, b.get().Status.VolumesInUse)
		report([]corev1.UniqueVolumeName{"b"})
		b.wait(time.Minute)
		assert.Equal(t, []corev1.UniqueVolumeName{"b"}, b.get().Status.VolumesInUse)
		report(nil)
		b.wait(time.Minute)
		assert.Equal(t, []corev1.UniqueVolumeName{"b"}, b.get().Status.VolumesInUse)
		report([]corev1.UniqueVolumeName{})
		b.wait(time.Minute)
		assert.Empty(t, b.get().Status.VolumesInUse)
	})
}

// VD-7: while not all volumes in use are known, those that are known are added, so that they can be attached.
func TestNode_AddsKnownVolumesInUse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var inUse, known atomic.Pointer[[]corev1.UniqueVolumeName]
		set := func(p *atomic.Pointer[[]corev1.UniqueVolumeName], names ...corev1.UniqueVolumeName) { p.Store(&names) }
		set(&inUse)
		set(&known, "b", "a")
		previous := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}
		previous.Status.VolumesInUse = []corev1.UniqueVolumeName{"a"}
		b := startNode(t, NodeConfig{
			StatusPeriod: time.Second, VolumesInUse: func() []corev1.UniqueVolumeName { return *inUse.Load() },
			KnownVolumesInUse: func() []corev1.UniqueVolumeName { return *known.Load() },
		}, previous).run()
		b.wait(time.Minute)
		assert.Equal(t, []corev1.UniqueVolumeName{"a", "b"}, b.get().Status.VolumesInUse)
		set(&known, "c")
		b.wait(time.Minute)
		assert.Equal(t, []corev1.UniqueVolumeName{"a", "b", "c"}, b.get().Status.VolumesInUse)
		set(&inUse, "c")
		b.wait(time.Minute)
		assert.Equal(t, []corev1.UniqueVolumeName{"c"}, b.get().Status.VolumesInUse)
	})
}
