package admission

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// Devices come and go while the node runs.
func TestAdmitter_Devices(t *testing.T) {
	available := corev1.ResourceList{}
	a, err := New(Config{Devices: func() corev1.ResourceList { return available }})
	require.NoError(t, err)
	const gpu corev1.ResourceName = "vendor.example/gpu"
	want := func(name string) *corev1.Pod {
		return requesting(t, name, "{vendor.example/gpu: 1, cpu: 900}")
	}
	require.True(t, a.Admit(want("one"), nil).Admitted, "no plugin provides it: not a device of this node")
	available = corev1.ResourceList{gpu: resource.MustParse("1")}
	require.True(t, a.Admit(want("one"), nil).Admitted)
	result := a.Admit(want("two"), []*corev1.Pod{want("one")})
	require.False(t, result.Admitted)
	require.Equal(t, "OutOfvendor.example/gpu", result.Reason)
	require.Contains(t, result.Message, "requested: 1, used: 1, capacity: 1")
	available = corev1.ResourceList{gpu: resource.MustParse("2")}
	require.True(t, a.Admit(want("two"), []*corev1.Pod{want("one")}).Admitted)
}

// Devices of the claim that the scheduler has made for the extended resources of a pod are none of a device plugin.
func TestAdmitter_ExtendedResourcesOfAClaim(t *testing.T) {
	const gpu corev1.ResourceName = "vendor.example/gpu"
	p := requesting(t, "p", "{vendor.example/gpu: 1, other.example/nic: 1}")
	p.Status.ExtendedResourceClaimStatus = &corev1.PodExtendedResourceClaimStatus{ResourceClaimName: "made", RequestMappings: []corev1.ContainerExtendedResourceRequest{
		{ContainerName: "a", ResourceName: string(gpu), RequestName: "r"},
	}}
	none := corev1.ResourceList{gpu: resource.MustParse("0"), "other.example/nic": resource.MustParse("1")}
	require.True(t, admit(t, Config{Devices: func() corev1.ResourceList { return none }}, p).Admitted)
	none["other.example/nic"] = resource.MustParse("0")
	require.Equal(t, "OutOfother.example/nic", admit(t, Config{Devices: func() corev1.ResourceList { return none }}, p).Reason)
	p.Status.ExtendedResourceClaimStatus.RequestMappings[0].ContainerName = "other"
	require.Equal(t, "OutOfother.example/nic", admit(t, Config{Devices: func() corev1.ResourceList { return none }}, p).Reason)
	none["other.example/nic"] = resource.MustParse("1")
	require.Equal(t, "OutOfvendor.example/gpu", admit(t, Config{Devices: func() corev1.ResourceList { return none }}, p).Reason)
}
