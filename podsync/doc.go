// Package podsync has the three transactions in the lifecycle of a pod: Sync brings its
// containers to the state in the spec, Terminate stops them, and Finish releases the
// resources of the pod. It corresponds to SyncPod, SyncTerminatingPod and SyncTerminatedPod
// in pkg/kubelet/kubelet.go of the kubelet.
//
// Runtime, volumes, cgroups, probes and statuses are used through one interface each. Only
// Runtime, PodCache and Statuses are required.
//
// Guarantees:
//
//   - Each transaction is idempotent. After a failure it is called again and
//     continues; nothing that it has created is lost.
//   - Containers are removed only after their results, exit codes above all, are
//     recorded in the status of the pod.
//   - A failure is emitted as one event until it changes. The log has one line for
//     each container that exits, each back-off and each wait for admission.
//   - Calls for different pods do not wait for each other. Calls for one pod must
//     not overlap; package podworkers serializes them.
//
// A Syncer is made for podworkers.Config:
//
//	syncer, err := podsync.New(podsync.Config{
//		Runtime: client, PodCache: generator, Statuses: statuses,
//		PodsDir: "/var/lib/edge/pods", LogsDir: "/var/log/pods",
//	})
//	if err != nil {
//		return err
//	}
//	workers, err := podworkers.New(podworkers.Config{Syncer: syncer, Inspector: generator})
package podsync
