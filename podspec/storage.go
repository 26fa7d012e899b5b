package podspec

import (
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// StorageObjects are objects about volumes and devices that pods do not contain.
type StorageObjects struct {
	Volumes    []*corev1.PersistentVolume
	Claims     []*corev1.PersistentVolumeClaim
	CSIDrivers []*storagev1.CSIDriver
	// ResourceClaims are about devices, which are found in manifests as volumes are.
	ResourceClaims []*resourcev1.ResourceClaim
}

// DecodeStorage is Decode for the PersistentVolumes, PersistentVolumeClaims, CSIDrivers
// (storage.k8s.io/v1) and ResourceClaims (resource.k8s.io/v1) of an input. Pods, ConfigMaps and Secrets are left out.
func DecodeStorage(data []byte, opt DecodeOptions) (StorageObjects, error) {
	d := decoder{opt: opt}
	err := d.decode(data)
	return d.storage, err
}

// VolumeSourceName returns the name of the field that a volume source has: csi, nfs. The
// source is a VolumeSource or a PersistentVolumeSource.
func VolumeSourceName[S corev1.VolumeSource | corev1.PersistentVolumeSource](source S) string {
	for _, name := range setFields(source) {
		return name
	}
	return ""
}

// storageObject decodes an object about volumes.
func (d *decoder) storageObject(raw []byte, t metav1.TypeMeta) (known bool, err error) {
	switch t {
	case metav1.TypeMeta{APIVersion: "v1", Kind: "PersistentVolume"}:
		v := &corev1.PersistentVolume{}
		err = d.into(raw, v)
		d.storage.Volumes = append(d.storage.Volumes, v)
	case metav1.TypeMeta{APIVersion: "v1", Kind: "PersistentVolumeClaim"}:
		c := &corev1.PersistentVolumeClaim{}
		err = d.into(raw, c)
		d.storage.Claims = append(d.storage.Claims, c)
	case metav1.TypeMeta{APIVersion: storagev1.SchemeGroupVersion.String(), Kind: "CSIDriver"}:
		driver := &storagev1.CSIDriver{}
		err = d.into(raw, driver)
		d.storage.CSIDrivers = append(d.storage.CSIDrivers, driver)
	case metav1.TypeMeta{APIVersion: resourcev1.SchemeGroupVersion.String(), Kind: "ResourceClaim"}:
		c := &resourcev1.ResourceClaim{}
		err = d.into(raw, c)
		d.storage.ResourceClaims = append(d.storage.ResourceClaims, c)
	default:
		return false, nil
	}
	return true, err
}
