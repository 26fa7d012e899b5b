package kube_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sublet-dev/agent/internal/kubetest"
	"github.com/sublet-dev/agent/kube"
)

// A node may record what becomes of an expansion, and the API server takes it.
func TestStorage_RealAPIServer(t *testing.T) {
	server := kubetest.Start(t)
	admin := server.Admin().CoreV1()
	amount := func(size string) corev1.ResourceList {
		return corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(size)}
	}
	claim, err := admin.PersistentVolumeClaims("default").Create(t.Context(), &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: "c"},
		Spec: corev1.PersistentVolumeClaimSpec{
			VolumeName: "pv", AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, Resources: corev1.VolumeResourceRequirements{Requests: amount("2Gi")},
		},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	claim.Status = corev1.PersistentVolumeClaimStatus{
		Phase: corev1.ClaimBound, AccessModes: claim.Spec.AccessModes, Capacity: amount("1Gi"), AllocatedResources: amount("2Gi"),
		AllocatedResourceStatuses: map[corev1.ResourceName]corev1.ClaimResourceStatus{corev1.ResourceStorage: corev1.PersistentVolumeClaimNodeResizePending},
		Conditions: []corev1.PersistentVolumeClaimCondition{
			{Type: corev1.PersistentVolumeClaimFileSystemResizePending, Status: corev1.ConditionTrue},
			{Type: corev1.PersistentVolumeClaimVolumeModifyingVolume, Status: corev1.ConditionTrue},
		},
	}
	claim, err = admin.PersistentVolumeClaims("default").UpdateStatus(t.Context(), claim, metav1.UpdateOptions{})
	require.NoError(t, err)
	pod := newTestPod("user")
	pod.UID, pod.Status = "", corev1.PodStatus{}
	pod.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "c"}}}}
	_, err = admin.Pods("default").Create(t.Context(), pod, metav1.CreateOptions{})
	require.NoError(t, err)

	k, err := kube.New(kube.Config{Client: server.Node(nodeName), NodeName: nodeName})
	require.NoError(t, err)
	s, err := k.Storage(kube.StorageConfig{})
	require.NoError(t, err)
	get := func() corev1.PersistentVolumeClaimStatus {
		t.Helper()
		got, err := admin.PersistentVolumeClaims("default").Get(t.Context(), "c", metav1.GetOptions{})
		require.NoError(t, err)
		return got.Status
	}
	require.EventuallyWithT(t, func(collect *assert.CollectT) { // the authorizer learns of the pod
		require.NoError(collect, s.Expanding(t.Context(), claim))
	}, time.Minute, 50*time.Millisecond)
	assert.Equal(t, corev1.PersistentVolumeClaimNodeResizeInProgress, get().AllocatedResourceStatuses[corev1.ResourceStorage])

	require.NoError(t, s.ExpansionFailed(t.Context(), claim, errors.New("disk is full"), true))
	st := get()
	assert.Equal(t, corev1.PersistentVolumeClaimNodeResizeInfeasible, st.AllocatedResourceStatuses[corev1.ResourceStorage])
	require.Len(t, st.Conditions, 3)
	messages := map[corev1.PersistentVolumeClaimConditionType]string{}
	for _, c := range st.Conditions {
		messages[c.Type] = c.Message
	}
	assert.Equal(t, "Expand the volume on its node: disk is full", messages[corev1.PersistentVolumeClaimNodeResizeError])

	require.NoError(t, s.Expanded(t.Context(), claim, &corev1.PersistentVolume{Spec: corev1.PersistentVolumeSpec{Capacity: amount("2Gi")}}))
	st = get()
	assert.Equal(t, "2Gi", st.Capacity.Storage().String())
	assert.Empty(t, st.AllocatedResourceStatuses)
	require.Len(t, st.Conditions, 1)
	assert.Equal(t, corev1.PersistentVolumeClaimVolumeModifyingVolume, st.Conditions[0].Type)
}

// The limit of a driver changes in the CSINode while the driver stays there; with another id it is one that was removed.
func TestStorage_RealAPIServerChangesDrivers(t *testing.T) {
	server := kubetest.Start(t)
	_, err := server.Admin().CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName}}, metav1.CreateOptions{})
	require.NoError(t, err)
	k, err := kube.New(kube.Config{Client: server.Node(nodeName), NodeName: nodeName})
	require.NoError(t, err)
	s, err := k.Storage(kube.StorageConfig{})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	for _, want := range []struct {
		id      string
		volumes int32
	}{{"id", 8}, {"id", 7}, {"id-2", 7}} {
		s.SetDrivers([]storagev1.CSINodeDriver{{Name: "csi.example", NodeID: want.id, Allocatable: &storagev1.VolumeNodeResources{Count: &want.volumes}}})
		require.EventuallyWithT(t, func(c *assert.CollectT) {
			n, err := server.Admin().StorageV1().CSINodes().Get(t.Context(), nodeName, metav1.GetOptions{})
			require.NoError(c, err)
			require.Len(c, n.Spec.Drivers, 1)
			d := n.Spec.Drivers[0]
			require.Equal(c, want.id, d.NodeID)
			require.NotNil(c, d.Allocatable)
			require.Equal(c, want.volumes, *d.Allocatable.Count)
		}, time.Minute, 50*time.Millisecond)
	}
	cancel()
	require.NoError(t, <-done)
}
