// Package podworkers runs the lifecycle of each pod: it is synced until its termination is
// requested, then terminated, then finished. The package corresponds to
// pkg/kubelet/pod_workers.go of the kubelet.
//
// A Syncer does the work. This package decides which of its methods is due for which pod,
// with which pod object and which grace period, and calls it.
//
// Guarantees:
//   - Forward: the phases are syncing, terminating, terminated, finished. A pod
//     whose termination was requested is never synced again.
//   - Isolated: calls for one pod do not overlap, calls for different pods do not
//     wait for each other, and a panic in a call is an error of that call only.
//   - Latest: updates that arrive during a call are merged into one.
//   - Immediate: termination and a shorter grace period cancel the call under way.
//     The next call follows without delay unless the last one failed.
//   - Fresh: each sync gets a state observed after the previous sync ended.
//   - On time: pods are requeued when they are due, whatever the wall clock does.
//   - Serialized: static pods with the same full name run one at a time, in order of
//     arrival.
//   - Light: an idle pod has no goroutine, no timer and no channel: one
//     timer serves all pods.
//
// The decisions are in state.go, requeue.go and tracker.go. These are pure: they
// read no clock, start no goroutine and take no lock.
//
//	w, err := podworkers.New(podworkers.Config{Syncer: syncer, Inspector: pleg})
//	if err != nil {
//		return err
//	}
//	go w.Run(ctx)
//	w.Update(podworkers.Update{Pod: pod})
//	err = w.Kill(ctx, pod.UID, podworkers.KillOptions{Termination: runtime.Termination{Deleted: true}})
package podworkers
