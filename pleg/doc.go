// Package pleg is the pod lifecycle event generator: it inspects pods in the runtime,
// keeps the pod cache up to date, and emits an event for each difference between two
// observed states of a pod. It corresponds to pkg/kubelet/pleg of the kubelet, with the
// generic and the evented PLEG in one.
//
// Guarantees:
//   - Inspected: only the result of an inspection reaches the cache. Runtime events
//     and relists only select the pods to inspect, so wrong, repeated or reordered
//     runtime events cannot corrupt the cache. An inspection may go on from the relist
//     that has selected the pod, unless that lacks something.
//   - On demand: GetNewerThan inspects a pod at once. Concurrent requests for one
//     pod share an inspection that began late enough for all of them.
//   - Isolated: a pod has at most one inspection at a time, and pods are inspected
//     in parallel. A slow inspection gives its slot back and delays no other pod.
//   - Backed by relists: with an event stream all pods are listed every few minutes,
//     without one every second. A stream that breaks, or does not report what a relist
//     finds, is opened again, indefinitely.
//   - Prompt: without an event stream a pod with a running init container is
//     inspected more often than it is listed, because the rest of it waits.
//   - Complete: no event is dropped and nothing waits for the reader. Unread events
//     are kept per pod, in bounded memory.
//   - Cheap: a relist compares ids and states. A pod that is missing from a relist
//     is known to be absent without an inspection.
//
// A program that prints all events:
//
//	var cache podcache.Cache
//	g, err := pleg.New(pleg.Config{Runtime: client, Cache: &cache})
//	if err != nil {
//		return err
//	}
//	go g.Run(ctx)
//	for {
//		select {
//		case <-ctx.Done():
//			return nil
//		case <-g.Notify():
//			for _, e := range g.Drain() {
//				fmt.Println(e)
//			}
//		}
//	}
package pleg
