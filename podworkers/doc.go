// Package podworkers takes each pod through its life: it is synced until its end
// is asked for, then terminated, then finished. A Syncer does the work; this
// package decides which of its calls is due for which pod, with which pod object
// and which grace, and makes them, one at a time for a pod and all pods at once.
//
// What it promises:
//   - Forward: syncing, terminating, terminated, finished. A pod whose end was
//     asked for is never synced again.
//   - Alone: calls for one pod do not overlap, calls for different pods do not
//     wait for each other, and a panic is that call's error and nothing else's.
//   - Latest: updates that come while a call is under way are merged into one.
//   - At once: the end of a pod, or a shorter grace, cancels the call under way;
//     the next call follows the last without a pause unless that one failed.
//   - Fresh: a call never sees the pod as it was before the last call that may
//     have changed it.
//   - In turn: static pods of one full name live one after another.
//   - Light: a pod at rest has no goroutine, no timer and no channel.
//
// The decisions are in state.go and book.go, which are pure: no time is read, no
// goroutine started, no lock taken there.
//
//	w, err := podworkers.New(podworkers.Config{Syncer: syncer, Seen: pleg})
//	if err != nil {
//		return err
//	}
//	go w.Run(ctx)
//	w.Update(podworkers.Update{Pod: pod})
//	err = w.Kill(ctx, pod.UID, podworkers.Kill{Deleted: true})
package podworkers
