// Package status works out what is told about each pod and tells it until it
// is heard.
//
// It has two halves. [Generate] is pure: from a pod, a report of what was seen
// of it and the status that was told before, it makes the new v1.PodStatus by
// the Kubernetes rules. [Manager] keeps the newest status of each pod and sends
// it to every [Sink].
//
// What it promises:
//
//   - Steady: a terminal phase never goes back, restart counts never fall, a
//     known exit code is never lost, transition times move only on change.
//   - True: Failed or Succeeded is never told while a container may run.
//   - Stingy: equal statuses are not sent twice; while one send is under way,
//     later changes merge into one. Memory is one status a pod.
//   - Ordered: a pod has at most one send to a sink under way, so a sink never
//     sees an older status after a newer one.
//   - Patient: a failed send is tried again until it succeeds, oldest waiting
//     pod first. A slow or broken sink holds up no other sink and no caller.
//   - Lasting: [FileSink] keeps statuses on disk, and [Manager.Restore] takes
//     them up again in a new process.
//
// FIELDS.md says of each field of a status who fills it.
package status
