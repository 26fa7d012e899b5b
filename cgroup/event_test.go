package cgroup_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/sublet-dev/agent/cgroup"
)

type eventList []*corev1.Event

func (l *eventList) Record(e *corev1.Event) { *l = append(*l, e) }

// As with a kubelet, it is an event of the node that the limits of all pods are in force, or that they cannot be.
func TestManager_RecordsAllocatable(t *testing.T) {
	root := madeUpV2(t, "/kubepods/burstable/podu1", "/kubepods/podu2", "/kubepods/besteffort")
	var events eventList
	for _, allocatable := range []corev1.ResourceList{nil, {"memory": resource.MustParse("1Gi")}} {
		m, err := cgroup.New(cgroup.Config{Root: root, Allocatable: allocatable, NodeName: "n1", Recorder: &events})
		require.NoError(t, err)
		_, err = m.Ensure(t.Context(), burstable("u1"))
		require.NoError(t, err)
		_, err = m.Ensure(t.Context(), guaranteed("u2"))
		require.NoError(t, err)
	}
	require.Len(t, events, 1, "only with limits, and once")
	e := events[0]
	assert.Equal(t, []string{"Node", "n1", "Normal", "NodeAllocatableEnforced"}, []string{e.InvolvedObject.Kind, e.InvolvedObject.Name, e.Type, e.Reason})

	limit := filepath.Join(root, "kubepods", "memory.max")
	require.NoError(t, os.Remove(limit))
	require.NoError(t, os.Mkdir(limit, 0o700)) // cannot be written
	m, err := cgroup.New(cgroup.Config{Root: root, Allocatable: corev1.ResourceList{"memory": resource.MustParse("1Gi")}, NodeName: "n1", Recorder: &events})
	require.NoError(t, err)
	for range 2 {
		_, err = m.Ensure(t.Context(), burstable("u1"))
		require.Error(t, err)
	}
	require.Len(t, events, 2)
	assert.Equal(t, []string{"Warning", "FailedNodeAllocatableEnforcement"}, []string{events[1].Type, events[1].Reason})
}
