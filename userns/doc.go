// Package userns sets aside the ids of pods' user namespaces: a pod with
// hostUsers false gets 65,536 ids of the node that no other pod has.
//
// Promises:
//
//   - Two pods never have an id in common, the ones of a former process included:
//     what a pod was given stands in the file userns in its own folder, under the
//     kubelet's name and in its form, before anything of the pod is made.
//   - A pod keeps its ids as long as its folder is there.
//   - Ids 0 to 65,535 are the node's own and given to nobody.
//   - When a file cannot be understood, no further pod gets ids, for they could be
//     somebody's already; those that have theirs go on.
package userns
