package node_test

import (
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/node"
)

func TestConfig_DetectedTakesWhatIsNotGiven(t *testing.T) {
	machine := fstest.MapFS{"proc/meminfo": {Data: []byte("MemTotal: 1048576 kB\n")}}
	c, err := node.Config{}.Detected(machine, t.TempDir(), nil)
	require.NoError(t, err)
	assert.Equal(t, int64(1<<30), c.Capacity.Memory().Value())
	assert.Equal(t, int64(1<<30), c.Allocatable.Memory().Value())
	assert.Positive(t, c.Capacity.StorageEphemeral().Value())

	kept := func(capacity corev1.ResourceList) corev1.ResourceList {
		assert.Equal(t, int64(1<<30), capacity.Memory().Value())
		return resources("memory=256Mi")
	}
	c, err = node.Config{PodsCgroupLimits: resources("memory=512Mi", "pid=10")}.Detected(machine, t.TempDir(), kept)
	require.NoError(t, err)
	assert.Equal(t, "512Mi", c.Allocatable.Memory().String(), "no more than the limit of all pods")
	assert.NotContains(t, c.Allocatable, node.ResourcePIDs)
	c, err = node.Config{}.Detected(machine, t.TempDir(), kept)
	require.NoError(t, err)
	assert.Equal(t, "768Mi", c.Allocatable.Memory().String())
	assert.Equal(t, int64(1<<30), c.PodsCgroupLimits.Memory().Value(), "pods are evicted before they reach the limit")
	assert.NotContains(t, c.PodsCgroupLimits, corev1.ResourceEphemeralStorage)
	require.NoError(t, c.Check())
	c, err = node.Config{DisableCgroups: true}.Detected(machine, t.TempDir(), kept)
	require.NoError(t, err)
	assert.Empty(t, c.PodsCgroupLimits)
}

func TestConfig_DetectedKeepsWhatIsGiven(t *testing.T) {
	never := func(corev1.ResourceList) corev1.ResourceList { t.Fatal("asked"); return nil }
	given := node.Config{Capacity: resources("memory=4Gi"), Allocatable: resources("memory=3Gi")}
	c, err := given.Detected(fstest.MapFS{}, "/nowhere", never)
	require.NoError(t, err)
	assert.Equal(t, given, c)
	c, err = node.Config{Capacity: resources("memory=4Gi")}.Detected(fstest.MapFS{}, "/nowhere", nil)
	require.NoError(t, err)
	assert.Equal(t, "4Gi", c.Allocatable.Memory().String())
}

func TestConfig_DetectedNamesWhatIsUsedUp(t *testing.T) {
	all := func(capacity corev1.ResourceList) corev1.ResourceList { return capacity }
	_, err := node.Config{Capacity: resources("memory=4Gi")}.Detected(fstest.MapFS{}, "/nowhere", all)
	require.ErrorContains(t, err, "memory")
	require.ErrorContains(t, err, "; set Allocatable")
}
