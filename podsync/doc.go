// Package podsync has the three transactions of a pod's life: Sync brings its
// containers to what its spec asks for, Terminate ends them, Finish gives back
// what the pod held. It is where the runtime, volumes, cgroups, probes and
// statuses meet, each behind an interface of its own; only Runtime, Seen and
// Statuses are required.
//
// Promises:
//
//   - Each transaction is idempotent. One that fails is called again and goes on
//     from there; nothing it made is lost.
//   - Nothing is removed before what it left, exit codes above all, is recorded
//     in the pod's status.
//   - A fault is told once as an event until it changes.
//   - Calls for different pods do not wait for each other; calls for one pod must
//     not overlap, which package podworkers sees to.
package podsync
