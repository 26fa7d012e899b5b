package eviction

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

func TestReservation(t *testing.T) {
	capacity := corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("8Gi"), corev1.ResourceEphemeralStorage: resource.MustParse("100Gi")}
	for name, tc := range map[string]struct {
		hard, soft string
		want       map[corev1.ResourceName]string
	}{
		"is nothing without thresholds":        {hard: None, want: map[corev1.ResourceName]string{}},
		"is what hard thresholds keep":         {hard: "memory.available<1Gi,nodefs.available<10%,pid.available<5%", want: map[corev1.ResourceName]string{"memory": "1Gi", "ephemeral-storage": "10Gi"}},
		"leaves soft thresholds out":           {hard: None, soft: "memory.available<1Gi", want: map[corev1.ResourceName]string{}},
		"leaves the file system of images out": {hard: "imagefs.available<10%", want: map[corev1.ResourceName]string{}},
	} {
		t.Run(name, func(t *testing.T) {
			grace := ""
			if tc.soft != "" {
				grace = "memory.available=1m"
			}
			thresholds, err := ParseThresholds(tc.hard, tc.soft, grace, "")
			require.NoError(t, err)
			got := Reservation(capacity, thresholds)
			assert.Len(t, got, len(tc.want))
			for name, want := range tc.want {
				have := got[name]
				assert.Zero(t, have.Cmp(resource.MustParse(want)), "%s is %s", name, have.String())
			}
		})
	}
}

func TestReservation_IsThatOfTheHighestThreshold(t *testing.T) {
	thresholds := []Threshold{
		{Signal: MemoryAvailable, Value: ThresholdValue{Quantity: resource.MustParse("2Gi")}},
		{Signal: MemoryAvailable, Value: ThresholdValue{Quantity: resource.MustParse("1Gi")}},
	}
	memory := Reservation(corev1.ResourceList{}, thresholds)[corev1.ResourceMemory]
	assert.Equal(t, "2Gi", memory.String())
}
