// Package status generates the v1.PodStatus of each pod and sends it to sinks until they
// accept it. It corresponds to pkg/kubelet/status, and to generateAPIPodStatus in
// pkg/kubelet/kubelet_pods.go, of the kubelet.
//
// It has two halves. [Generate] is pure: it computes the new v1.PodStatus from a
// pod, a report of its observed state and its previous status, by the rules of
// Kubernetes. [Manager] keeps the newest status of each pod and sends it to every
// [Sink].
//
// Guarantees:
//
//   - Steady: a terminal phase is final, restart counts never decrease, a known
//     exit code is never lost, transition times change only with the condition.
//   - True: Failed or Succeeded is never reported while a container may run.
//   - Deduplicated: an unchanged status is not sent again. Changes made during a
//     send are merged into the next one. Memory is one status per pod.
//   - Ordered: at most one send per pod and sink is in progress, so a sink never
//     receives an older status after a newer one.
//   - Persistent: a failed send is retried until it succeeds, the pod that waits
//     longest first. A slow or broken sink delays no other sink and no caller.
//   - Durable: [FileSink] stores statuses on disk, and [Manager.Restore] loads
//     them in a new process.
//
// FIELDS.md documents for each field of a status who sets it.
//
//	statuses, err := status.New(status.Config{Sinks: []status.Sink{sink}})
//	if err != nil {
//		return err
//	}
//	go statuses.Run(ctx)
//	st := statuses.Observe(pod, runtime.Report{Observed: observed})
package status
