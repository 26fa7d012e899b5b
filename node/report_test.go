package node

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/fstest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/runtime"
)

func newStatus(t *testing.T, cfg StatusConfig) *Status {
	t.Helper()
	cfg.Conditions = newConditions(t, ConditionsConfig{})
	s, err := NewStatus(cfg)
	require.NoError(t, err)
	return s
}

func statusOf(t *testing.T, cfg StatusConfig) corev1.NodeStatus {
	t.Helper()
	st, err := newStatus(t, cfg).At(t.Context(), time.Now())
	require.NoError(t, err)
	return st
}

func TestNewStatus_RequiresConditions(t *testing.T) {
	_, err := NewStatus(StatusConfig{})
	require.EqualError(t, err, "node: StatusConfig.Conditions: required")
}

// ND-1
func TestStatus_Resources(t *testing.T) {
	resources := Resources{Capacity: resourceList("cpu=4 memory=8Gi pid=1000"), Allocatable: resourceList("cpu=3 memory=7Gi")}
	st := statusOf(t, StatusConfig{Resources: resources, MaxPods: 110})
	requireResources(t, "cpu=4 memory=8Gi pods=110", st.Capacity)
	requireResources(t, "cpu=3 memory=7Gi pods=110", st.Allocatable)
	requireResources(t, "cpu=4 memory=8Gi pid=1000", resources.Capacity)

	st = statusOf(t, StatusConfig{})
	assert.NotNil(t, st.Capacity)
	assert.Empty(t, st.Capacity, "no bound of pods is none that is reported")
}

// Devices of a plugin that is gone are reported with 0, so that a cluster forgets them.
func TestStatus_Devices(t *testing.T) {
	st := statusOf(t, StatusConfig{
		Resources:          Resources{Capacity: resourceList("cpu=4"), Allocatable: resourceList("cpu=3")},
		Devices:            func() corev1.ResourceList { return resourceList("v.example/gpu=2 v.example/nic=0") },
		AllocatableDevices: func() corev1.ResourceList { return resourceList("v.example/gpu=1") },
	})
	requireResources(t, "cpu=4 v.example/gpu=2 v.example/nic=0", st.Capacity)
	requireResources(t, "cpu=3 v.example/gpu=1 v.example/nic=0", st.Allocatable)

	st = statusOf(t, StatusConfig{Devices: func() corev1.ResourceList { return resourceList("v.example/gpu=2") }})
	requireResources(t, "v.example/gpu=0", st.Allocatable)
}

func TestStatus_Runtime(t *testing.T) {
	st := statusOf(t, StatusConfig{Info: corev1.NodeSystemInfo{MachineID: "m"}, Port: 10250, Runtime: func() runtime.Status {
		return runtime.Status{Name: "containerd", Version: "v2.4", SupplementalGroupsPolicy: true, Handlers: []runtime.Handler{{UserNamespaces: true}, {Name: "kata", RecursiveReadOnlyMounts: true}}}
	}})
	assert.Equal(t, "containerd://v2.4", st.NodeInfo.ContainerRuntimeVersion)
	assert.Equal(t, "m", st.NodeInfo.MachineID)
	assert.EqualValues(t, 10250, st.DaemonEndpoints.KubeletEndpoint.Port)
	require.Len(t, st.RuntimeHandlers, 2)
	assert.Equal(t, []bool{false, true}, []bool{*st.RuntimeHandlers[0].Features.RecursiveReadOnlyMounts, *st.RuntimeHandlers[0].Features.UserNamespaces})
	assert.Equal(t, []bool{true, false}, []bool{*st.RuntimeHandlers[1].Features.RecursiveReadOnlyMounts, *st.RuntimeHandlers[1].Features.UserNamespaces})
	assert.Equal(t, "kata", st.RuntimeHandlers[1].Name)
	assert.True(t, *st.Features.SupplementalGroupsPolicy)

	st = statusOf(t, StatusConfig{Runtime: func() runtime.Status { return runtime.Status{} }})
	assert.Empty(t, st.NodeInfo.ContainerRuntimeVersion, "before the runtime has answered")
	assert.Nil(t, st.Features)
	assert.Nil(t, st.RuntimeHandlers, "those that an API server has stay")
	st = statusOf(t, StatusConfig{Runtime: func() runtime.Status { return runtime.Status{Name: "x"} }})
	assert.Equal(t, "x://Unknown", st.NodeInfo.ContainerRuntimeVersion)
	assert.NotNil(t, st.RuntimeHandlers, "those of an earlier runtime are removed")
	assert.Empty(t, st.RuntimeHandlers)
}

func TestStatus_ImagesAreTheLargest(t *testing.T) {
	var images []runtime.Image
	for i := range 60 {
		images = append(images, runtime.Image{ID: fmt.Sprint(i), Tags: []string{fmt.Sprint("tag", i)}, Digests: []string{fmt.Sprint("digest", i)}, Bytes: uint64(i)})
	}
	images = append(images, runtime.Image{ID: "many", Bytes: 100, Tags: []string{"1", "2", "3", "4", "5", "6"}}, runtime.Image{ID: "nameless", Bytes: 80}, runtime.Image{ID: "absurd", Tags: []string{"absurd"}, Bytes: 1<<64 - 1})
	cfg := StatusConfig{Images: func(context.Context) ([]runtime.Image, error) { return images, nil }}
	got := statusOf(t, cfg).Images
	require.Len(t, got, 50, "the one without a name takes no place")
	assert.Equal(t, corev1.ContainerImage{Names: []string{"absurd"}, SizeBytes: 1 << 62}, got[0])
	assert.Equal(t, []string{"1", "2", "3", "4", "5"}, got[1].Names)
	assert.Equal(t, []string{"digest59", "tag59"}, got[2].Names)
	assert.Equal(t, "0", images[0].ID, "the list is the caller's")

	images = append(images, runtime.Image{ID: "9", Bytes: 59, Tags: []string{"last"}}, runtime.Image{ID: "58", Bytes: 59, Tags: []string{"between"}})
	assert.Equal(t, "last", statusOf(t, cfg).Images[2].Names[0], "of one size, the highest id first, as with a kubelet")
	assert.Equal(t, "digest59", statusOf(t, cfg).Images[3].Names[0])
	images = images[:len(images)-2]

	cfg.MaxImages = 2
	assert.Len(t, statusOf(t, cfg).Images, 2)
	cfg.MaxImages = AllImages
	assert.Len(t, statusOf(t, cfg).Images, 62)
	cfg.MaxImages = NoImages
	none := statusOf(t, cfg).Images
	assert.NotNil(t, none, "those that an API server has are removed")
	assert.Empty(t, none)
	machine := Config{MaxImages: 7}.StatusConfig("n", fstest.MapFS{})
	assert.Equal(t, 7, machine.MaxImages)
}

func TestStatus_NoImages(t *testing.T) {
	var failed error
	s := newStatus(t, StatusConfig{Images: func(context.Context) ([]runtime.Image, error) { return nil, failed }})
	st, err := s.At(t.Context(), time.Now())
	require.NoError(t, err)
	assert.NotNil(t, st.Images, "those that an API server has are removed")
	assert.Empty(t, st.Images)
	failed = errors.New("no images")
	st, err = s.At(t.Context(), time.Now())
	require.ErrorIs(t, err, failed)
	assert.Nil(t, st.Images, "those that an API server has stay")
}

func TestStatus_ReportsWhatItCanFindOut(t *testing.T) {
	s := newStatus(t, StatusConfig{
		Addresses:        func() ([]corev1.NodeAddress, error) { return nil, errors.New("no address") },
		Images:           func(context.Context) ([]runtime.Image, error) { return nil, errors.New("no images") },
		DeclaredFeatures: []string{"F"},
		VolumesInUse:     func() []corev1.UniqueVolumeName { return []corev1.UniqueVolumeName{"v"} },
	})
	st, err := s.At(t.Context(), time.Now())
	require.ErrorContains(t, err, "no address")
	require.ErrorContains(t, err, "no images")
	assert.Equal(t, []corev1.UniqueVolumeName{"v"}, st.VolumesInUse)
	assert.Equal(t, []string{"F"}, st.DeclaredFeatures)
	assert.Len(t, st.Conditions, 4)
	assert.Len(t, s.Conditions(), 4)
}

// What the configuration of a node says is part of its status.
func TestConfig_StatusConfig(t *testing.T) {
	c := Config{Capacity: resourceList("cpu=4"), Allocatable: resourceList("cpu=3"), MaxPods: 7, IPs: []string{"192.0.2.7"}, Port: 10250}
	cfg := c.StatusConfig("node-a", fstest.MapFS{"etc/machine-id": {Data: []byte("abc\n")}})
	_, err := cfg.Addresses()
	require.ErrorContains(t, err, "node address 192.0.2.7", "it is not an address of this machine")
	current := []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "192.0.2.8"}}
	c.Addresses = func() ([]corev1.NodeAddress, error) { return current, nil }
	cfg = c.StatusConfig("node-a", fstest.MapFS{"etc/machine-id": {Data: []byte("abc\n")}})
	st := statusOf(t, cfg)
	requireResources(t, "cpu=4 pods=7", st.Capacity)
	requireResources(t, "cpu=3 pods=7", st.Allocatable)
	assert.Equal(t, current, st.Addresses)
	assert.Equal(t, "abc", st.NodeInfo.MachineID)
	assert.Equal(t, int32(10250), st.DaemonEndpoints.KubeletEndpoint.Port)
}
