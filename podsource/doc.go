// Package podsource says which pods should run on this node.
//
// A Source tells all that one origin of pods wants, each time anew: File reads
// a folder of manifests, HTTP asks a server, Memory is filled by the program. Cached
// keeps what another one said last over restarts.
// A Mux unites any number of them and turns what they want into changes, one
// kind at a time: pods that came, changed, went, are to be deleted, or whose
// ConfigMaps and Secrets changed. It promises:
//
//   - What ran is not harmed by what cannot be read. A manifest that turns
//     invalid, half-written or unreadable keeps the pods it last described, and
//     is told as a Fault until it is well again.
//   - Nothing is lost and nothing piles up. A slow reader of Changes gets the way
//     from what it was told last to what is wanted now.
//   - One pod a full name. The first one stays, a second is refused, told, and
//     taken up when the first goes.
//   - Sources do not wait for each other, and what a source has not said yet is
//     never taken for its wish that nothing should run: see Mux.Ready, Mux.Holds
//     and, for who is waited for, Mux.Unsynced.
//   - Every pod handed over has an identity and all defaults, is valid, belongs
//     to nobody, and never changes.
//
// A program that prints what happens to a folder of manifests:
//
//	mux, err := podsource.New(podsource.Config{
//		NodeName: "edge-1",
//		Sources:  []podsource.Named{{Name: "file", Source: podsource.File("/etc/sublet/manifests")}},
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
