// Package containergc removes exited containers, empty sandboxes and logs of pods. It
// corresponds to kuberuntime_gc.go in pkg/kubelet/kuberuntime and to
// pod_container_deletor.go in pkg/kubelet of the kubelet.
//
// Guarantees:
//   - The last exited container of each name is kept while its pod is desired or, with
//     KeepUntilReplaced, until a newer one runs. Its exit code is part of the status,
//     and planning has to know that an init container has completed.
//   - Everything of a deleted pod is removed, within a second of RequestCollection, and
//     containers of an evicted one with their logs, once its source has its status.
//   - Removals are paced, so that the runtime can start containers meanwhile. Deleted
//     pods come first, and Reclaim does not wait for a paced collection.
//   - What cannot be removed is tried again with a back-off, from one Period up to 15
//     minutes, also when its pod is not known any more. Collect and Reclaim do not wait.
//
// Decisions are made by Plan, a pure function, and PodStates. Collector executes them:
//
//	collector, err := containergc.New(containergc.Config{
//		Containers: client,
//		PodState:   containergc.PodStates{Sources: mux, Workers: workers, Cache: &cache}.State,
//	})
//	if err != nil {
//		return err
//	}
//	return collector.Run(ctx)
package containergc
