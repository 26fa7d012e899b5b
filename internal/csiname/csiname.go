// Package csiname has the names by which a cluster knows the volumes of CSI drivers.
package csiname

import (
	"crypto/sha256"
	"encoding/hex"

	corev1 "k8s.io/api/core/v1"
)

// Attachment is the name of the VolumeAttachment of a volume on a node, as the attach
// controller computes it.
func Attachment(driver, handle, node string) string {
	sum := sha256.Sum256([]byte(handle + driver + node))
	return "csi-" + hex.EncodeToString(sum[:])
}

// Unique is the name of a volume in the status of a node.
func Unique(driver, handle string) corev1.UniqueVolumeName {
	return corev1.UniqueVolumeName("kubernetes.io/csi/" + driver + "^" + handle)
}
