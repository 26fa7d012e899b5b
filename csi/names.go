package csi

import corev1 "k8s.io/api/core/v1"

// UniqueName is the name of a volume in the status of a node.
func UniqueName(driver, handle string) corev1.UniqueVolumeName {
	return corev1.UniqueVolumeName("kubernetes.io/csi/" + driver + "^" + handle)
}

// AttachmentName is the name of the VolumeAttachment of a volume on a node, as its
// controller computes it.
func AttachmentName(driver, handle, node string) string { return attachmentName(driver, handle, node) }
