// Package pleg is the pod lifecycle event generator: it finds out what changed in
// the runtime, keeps a store of views up to date, and tells what led from one view
// of a pod to the next.
//
// What it promises:
//   - Inspected: only the result of an inspection becomes a view. Runtime events
//     and listings merely say which pod to inspect, so that no lie, repeat or
//     reordering of theirs can spoil a view.
//   - On demand: whoever needs a newer view gets one at once. Requests for one
//     pod share an inspection as long as it began late enough for all of them.
//   - Apart: a pod is inspected once at a time, pods in parallel. A pod whose
//     inspection hangs gives its slot back and delays no other.
//   - Backstopped: with an event stream everything is listed every few minutes,
//     without one every second. A stream that broke is opened again for ever.
//   - Complete: nothing is dropped and nothing waits for the reader. What has not
//     been read is kept by pod, and its size is bounded by the pod's own.
//   - Frugal: a listing costs no more than comparing ids and states. A pod that
//     is in no listing is known to be absent without asking.
//
// A program that prints what happens:
//
//	var cache podcache.Cache
//	g, err := pleg.New(pleg.Config{Runtime: client, Store: &cache})
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
