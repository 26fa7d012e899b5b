// Package podsapi serves the kubelet's pods API (k8s.io/kubelet/pkg/apis/pods/v1alpha1): the pods of
// the node with the statuses that the agent reports, as a list, one by its UID, and as a stream of
// changes. Programs of the node ask it instead of an API server, which may be out of reach.
//
// Until Config.Ready says that the pods are known, each call fails with FailedPrecondition: a list
// without a pod that runs would say that it is gone.
//
// # Watches
//
// A watch begins with ADDED for each pod, in the order of their UIDs, and INITIAL_SYNC_COMPLETE. Then
// each change of a status is an event, with the pod as it is then. DELETED has namespace, name and
// UID. A client that reads slowly gets the newest state of each pod, the last one of a deleted pod
// included, so it holds up nothing and takes memory for its pods only. One that has not read an event
// for a minute is ended with ResourceExhausted.
//
// # Limits
//
// Calls above 100 per second, watches that begin among them, and watches beyond 64 fail with
// ResourceExhausted. A connection beyond 256 is closed at once, and one that is idle for ten minutes,
// too: clients of gRPC connect again with their next call. A list is one message, and a client of gRPC
// accepts messages of 4 MiB unless it is configured otherwise; a watch has one pod in each.
package podsapi
