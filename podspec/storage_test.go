package podspec

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
)

const storageManifest = web + `---
apiVersion: v1
kind: PersistentVolume
metadata: {name: pv}
spec: {nfs: {server: nas, path: /x}}
---
apiVersion: v1
kind: PersistentVolumeClaimList
items:
- metadata: {name: claim}
---
apiVersion: storage.k8s.io/v1
kind: CSIDriver
metadata: {name: csi.example}
spec: {}
`

func TestDecodeStorage(t *testing.T) {
	got, err := DecodeStorage([]byte(storageManifest), DecodeOptions{})
	require.NoError(t, err)
	require.Len(t, got.Volumes, 1)
	require.Len(t, got.Claims, 1)
	require.Len(t, got.CSIDrivers, 1)
	assert.Equal(t, "pv claim csi.example", got.Volumes[0].Name+" "+got.Claims[0].Name+" "+got.CSIDrivers[0].Name)
	assert.Equal(t, "nfs", VolumeSourceName(got.Volumes[0].Spec.PersistentVolumeSource))
	assert.Empty(t, VolumeSourceName(corev1.VolumeSource{}))

	pods, objects, err := Decode([]byte(storageManifest), DecodeOptions{})
	require.NoError(t, err, "volumes may be beside pods")
	assert.Equal(t, []string{"web"}, names(pods))
	assert.Empty(t, objects)
}

// A field that does not exist is an error in every reading of the input.
func TestDecodeStorage_IsStrict(t *testing.T) {
	for _, in := range []string{
		"apiVersion: v1\nkind: PersistentVolume\nmetadata: {name: pv}\nspec: {nsf: {}}\n",
		"apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: pv}\nspec: {volume: x}\n",
		"apiVersion: storage.k8s.io/v1\nkind: CSIDriver\nmetadata: {name: d}\nspec: {podInfo: true}\n",
		"apiVersion: storage.k8s.io/v1beta1\nkind: CSIDriver\nmetadata: {name: d}\n",
	} {
		_, err := DecodeStorage([]byte(in), DecodeOptions{})
		require.Error(t, err)
		_, _, err = Decode([]byte(in), DecodeOptions{})
		require.Error(t, err)
		_, err = DecodeStorage([]byte(in), DecodeOptions{Lenient: true})
		if in[len("apiVersion: ")] == 'v' {
			require.NoError(t, err)
		}
	}
}
