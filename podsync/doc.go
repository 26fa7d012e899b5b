// Package podsync has the three transactions in the lifecycle of a pod. Sync brings
// its containers to the state that the spec describes, Terminate stops them, and
// Finish releases the resources of the pod. Runtime, volumes, cgroups, probes and
// statuses are used through one interface each. Only Runtime, PodCache and Statuses
// are required.
//
// Guarantees:
//
//   - Each transaction is idempotent. After a failure it is called again and
//     continues; nothing that it has made is lost.
//   - Containers are removed only after their results, exit codes above all, are
//     recorded in the status of the pod.
//   - A failure is emitted as one event until it changes. The log has one line for
//     each container that exits, each back-off and each wait for admission.
//   - Calls for different pods do not wait for each other. Calls for one pod must
//     not overlap; package podworkers serializes them.
package podsync
