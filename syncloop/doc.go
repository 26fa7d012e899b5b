// Package syncloop merges all event sources that affect pods: configuration changes,
// PLEG events, probe results and finished pods. It corresponds to syncLoop and its handlers
// in pkg/kubelet/kubelet.go of the kubelet.
//
// The Loop is one goroutine that selects over the sources and calls a Handler. PodManager
// is the Handler that admits pods and passes them to workers. Housekeeper is the Cleaner
// that terminates orphans and removes their resources.
//
// Guarantees:
//   - The loop never blocks: it waits for no pod, no runtime call and no admission check
//     that does I/O. Housekeeping and runtime health checks run in other goroutines.
//   - A pod is admitted or rejected once. A pod that already runs is adopted, or left alone
//     if it is invalid.
//   - While the runtime is not ready, no input is handled, no pod is requeued and nothing
//     is lost. The loop continues as soon as the runtime is ready.
//   - Running pods are left alone when in doubt: a pod is terminated only if its source
//     has synced and does not contain it. A pod of a source that is no longer configured
//     is terminated when all sources have synced, and a pod that names no source never.
//     The runtime leaves out the pods of other owners: see runtime.OwnerSetter.
//   - The log has one line for each step in the lifecycle of a pod: admitted, adopted,
//     rejected, updated, removed.
//
// Stopping the loop, or closing its configuration channel, terminates no pod.
//
//	loop, err := syncloop.New(syncloop.Config{
//		Changes: mux.Changes(), Handler: podManager, Workers: workers, Events: generator, Cleaner: housekeeper,
//	})
//	if err != nil {
//		return err
//	}
//	return loop.Run(ctx)
package syncloop
