// Package userns allocates ids for the user namespaces of pods (KEP-127), as
// pkg/kubelet/userns does in the kubelet. A pod with hostUsers false gets 65,536 ids of the
// node that no other pod uses.
//
// Guarantees:
//
//   - Two pods never share an id, not even across restarts: the range of a pod is saved
//     in the file userns in its directory, with the name and format of the kubelet,
//     before anything of the pod is created.
//   - A pod keeps its ids as long as its directory exists.
//   - Ids 0 to 65,535 belong to the node and are never allocated.
//   - If a file cannot be read, no ids are allocated to further pods, because they could
//     be in use. Pods that have ids keep them.
//
// The ids are passed to the runtime, which creates the user namespace:
//
//	ids, err := userns.New(userns.Config{PodsDir: "/var/lib/edge/pods"})
//	if err != nil {
//		return err
//	}
//	users, groups, err := ids.Ensure(pod.UID) // the directory of the pod must exist
//	ids.Release(pod.UID)                      // after the directory was removed
package userns
