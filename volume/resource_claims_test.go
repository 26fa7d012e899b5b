package volume_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/volume"
)

const resourceClaims = `apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: gpu}
spec: {}
status: {allocation: {devices: {results: [{request: gpu, driver: gpu.vendor.example, pool: node, device: gpu0}]}}}
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: gpu, namespace: lab, uid: given}
spec: {}
`

// Claims for devices are found beside the manifests of pods, and have an id of their own.
func TestFiles_ResourceClaim(t *testing.T) {
	dir := t.TempDir()
	f := volume.NewFiles(dir)
	_, err := f.ResourceClaim(t.Context(), "default", "gpu")
	require.ErrorIs(t, err, podspec.ErrObjectNotFound)
	require.ErrorContains(t, err, "ResourceClaim default/gpu")
	require.NoError(t, os.WriteFile(filepath.Join(dir, "claims.yaml"), []byte(resourceClaims), 0o600))
	c, err := f.ResourceClaim(t.Context(), "default", "gpu")
	require.NoError(t, err)
	require.Equal(t, "default", c.Namespace)
	require.Equal(t, "gpu.vendor.example", c.Status.Allocation.Devices.Results[0].Driver)
	require.Len(t, string(c.UID), 32)
	second, err := f.ResourceClaim(t.Context(), "default", "gpu")
	require.NoError(t, err)
	require.Equal(t, c.UID, second.UID)
	other, err := f.ResourceClaim(t.Context(), "lab", "gpu")
	require.NoError(t, err)
	require.Equal(t, "given", string(other.UID))
	_, err = volume.NewFiles(filepath.Join(dir, "claims.yaml", "none")).ResourceClaim(t.Context(), "default", "gpu")
	require.Error(t, err)
}
