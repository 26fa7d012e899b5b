// Package volume mounts and unmounts the volumes of pods: emptyDir on disk, in
// memory and in huge pages, hostPath, configMap, secret, downwardAPI and projected. It corresponds to
// pkg/kubelet/volumemanager and these plugins of pkg/volume in the kubelet. Image volumes
// are passed to the runtime. PersistentVolumeClaims lead to local volumes, which are directories or disks, and to
// those of a Driver, which mounts what this package does not.
//
// Guarantees:
//
//   - Mount is idempotent. A later call updates changed ConfigMaps, Secrets and labels
//     in running containers atomically: the content is in a directory with a timestamp
//     as its name, and the symbolic link ..data, which leads to it, is replaced.
//   - The disk is the source of truth. After a crash of the agent PodUIDs returns the
//     pods with volumes, and Unmount removes them. A volume mounted by this process is
//     compared with the disk when its content changes, when it is missing, and every
//     10 minutes.
//   - Nothing is deleted through a mount point, and no symbolic link is followed out of
//     the directory of a pod, whatever a container has written to its volumes.
//   - The disk of a local volume is formatted only if there is nothing on it, as far as blkid(8) and
//     its first and last MiB say.
//   - Without root everything except memory and huge pages works. The error names the volume that
//     needs root.
//
// Volumes are at <root>/pods/<uid>/volumes/<plugin>/<name>, as with the kubelet, and
// mounts of subPaths at <root>/pods/<uid>/volume-subpaths.
//
//	volumes, err := volume.New(volume.Config{Root: "/var/lib/edge"})
//	if err != nil {
//		return err
//	}
//	mounted, err := volumes.Mount(ctx, pod, objects) // before containers are created
//	err = volumes.Unmount(ctx, pod.UID)              // after they have terminated
package volume
