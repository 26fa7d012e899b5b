// Package csi mounts the volumes of CSI drivers. It is the volume.Driver of the source csi,
// and the pluginregistry.Handler of the type CSIPlugin, and corresponds to pkg/volume/csi
// and the reconstruction of pkg/kubelet/volumemanager in the kubelet.
//
// Guarantees:
//
//   - A record is on disk before a driver is called. After a crash of the agent at any
//     moment, Unmount unpublishes and unstages what there is, and a volume that is staged
//     for no pod is unstaged.
//   - Each call has a deadline. A driver that hangs delays only pods that start or end with its
//     volumes; an event names the volume and the call for which a pod waits.
//   - What a driver reports is checked: what it has mounted must be a mount, and nothing is
//     deleted through a mount that it should have removed. A volume is staged once more for the
//     next pod, unless this process has staged it and has not called its driver to unstage it since.
//   - Secrets occur in no error, log or event, even if a driver repeats them.
//
// Directories and records below the root are those of the kubelet:
//
//	plugins_registry                                            sockets of registration
//	plugins/kubernetes.io/csi/<driver>/<hash>/globalmount       staged
//	plugins/kubernetes.io/csi/volumeDevices/staging/<volume>    staged devices
//	plugins/kubernetes.io/csi/volumeDevices/publish/<volume>    published devices
//	pods/<uid>/volumes/kubernetes.io~csi/<volume>/mount         published
//
// A node without an API server needs a PersistentVolume beside the manifest of the pod, and
// no attacher: see volume.Files. In a cluster package kube provides claims, attachments and
// the CSINode.
package csi
