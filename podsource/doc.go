// Package podsource provides the desired pods of a node: from manifests in a directory, a
// server, the program itself, or any number of these. It corresponds to pkg/kubelet/config
// of the kubelet.
//
// A Source delivers the complete desired set of one origin: File reads a directory
// of manifests, HTTP polls a server, and Memory is filled by the program. Cached keeps
// the last set of another source across restarts. A Mux merges any number of sources
// and computes the changes: added, updated, removed and deleted pods, and pods whose
// ConfigMaps or Secrets changed.
//
// Guarantees:
//
//   - Running pods are not affected by unreadable or invalid manifests. The last valid
//     pods of such a manifest stay, and a SourceError is reported until it is resolved.
//   - Changes do not queue up. A slow reader of Changes receives the difference between
//     what it received last and the desired state now.
//   - There is one pod per full name. The first one stays; a second one is rejected,
//     reported, and accepted when the first one is removed.
//   - Sources do not wait for each other. A source that has not synced never counts as
//     empty: see Mux.HasSynced, Mux.MayBeDesired and Mux.Unsynced.
//   - Every delivered pod has an identity and all defaults, is valid and read-only. Only a
//     pod that is not static is also delivered if it is invalid and never was valid, marked
//     and reduced to what is valid, so that its reader rejects it: see InvalidReason.
//
// A program that prints the changes of a manifest directory:
//
//	mux, err := podsource.New(podsource.Config{
//		NodeName: "edge-1",
//		Sources:  []podsource.NamedSource{{Name: "file", Source: podsource.File("/etc/sublet/manifests")}},
//	})
//	if err != nil {
//		return err
//	}
//	go func() {
//		for change := range mux.Changes() {
//			fmt.Println(change.Op, len(change.Pods))
//		}
//	}()
//	return mux.Run(ctx)
package podsource
