package stats

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/runtime"
)

type driverVolumes map[types.UID]map[string]runtime.FSUsage

func (d driverVolumes) VolumeUsage(uid types.UID) map[string]runtime.FSUsage { return d[uid] }

// The volumes of drivers are in the summary with their claims, and are no ephemeral storage.
func TestAddDriverVolumes(t *testing.T) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "db", UID: "u"}}
	pod.Spec.Volumes = []corev1.Volume{
		{Name: "data", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "claim"}}},
		{Name: "scratch", VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}},
		{Name: "inline", VolumeSource: corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{Driver: "d"}}},
	}
	usage := runtime.FSUsage{At: time.Unix(100, 0), CapacityBytes: 10, UsedBytes: 4, AvailableBytes: 6, Inodes: 9, InodesUsed: 2}
	s := Summary{Pods: []PodStats{{PodRef: PodReference{UID: "other"}}, {PodRef: PodReference{UID: "u"}}}}
	volumes := driverVolumes{"u": {"data": usage, "scratch": usage, "inline": usage, "unknown": {}}}
	addDriverVolumes(&s, []*corev1.Pod{pod}, volumes)
	assert.Empty(t, s.Pods[0].VolumeStats)
	assert.Nil(t, s.Pods[1].EphemeralStorage)
	got := s.Pods[1].VolumeStats
	require.Len(t, got, 3)
	for i, want := range []struct {
		name string
		ref  *PVCReference
	}{{"data", &PVCReference{"claim", "ns"}}, {"inline", nil}, {"scratch", &PVCReference{"db-scratch", "ns"}}} {
		assert.Equal(t, want.name, got[i].Name)
		assert.Equal(t, want.ref, got[i].PVCRef)
		assert.Equal(t, []uint64{10, 4, 6, 9, 2, 7}, []uint64{*got[i].CapacityBytes, *got[i].UsedBytes, *got[i].AvailableBytes, *got[i].Inodes, *got[i].InodesUsed, *got[i].InodesFree})
	}
	alone := VolumeSummary([]*corev1.Pod{pod}, volumes)
	require.Len(t, alone.Pods, 1)
	assert.Equal(t, PodReference{Name: "db", Namespace: "ns", UID: "u"}, alone.Pods[0].PodRef)
	assert.Equal(t, got, alone.Pods[0].VolumeStats)
}

func (driverVolumes) LocalVolumePaths(*corev1.Pod) map[string]string { return nil }

func TestLocator_VolumeUsage(t *testing.T) {
	usage := map[string]runtime.FSUsage{"data": {UsedBytes: 4}}
	assert.Equal(t, usage, Locator{Volumes: driverVolumes{"u": usage}}.VolumeUsage("u"))
	assert.Empty(t, Locator{}.VolumeUsage("u"))
}
