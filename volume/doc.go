// Package volume puts the volumes of pods in place and takes them away again:
// emptyDir on disk and in memory, hostPath, configMap, secret, downwardAPI,
// projected, and images, which are handed through to the runtime.
//
// What it promises:
//
//   - Mount is idempotent. Called again it brings changed ConfigMaps, Secrets
//     and labels into the running container at one stroke: content stands in a
//     folder named by its time, a link called ..data leads to it, and the link
//     is what is swapped.
//   - The disk is the memory that counts. After a crash of the agent Known tells
//     whose volumes are there and Unmount takes them away. What a process has put in
//     place it compares with the disk only when it should change, when it is not
//     there any more, and every 10 minutes.
//   - Nothing is deleted through a mount point, and no link is followed out of a
//     pod's folder, whatever a container has put into its volumes.
//   - Without root all but memory works, and the error says which volume asks
//     for it.
//
// Volumes are at <root>/pods/<uid>/volumes/<plugin>/<name>, as kubelets have
// them, and mounts of subPaths at <root>/pods/<uid>/volume-subpaths.
package volume
