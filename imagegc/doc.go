// Package imagegc removes unused images, as the image garbage collector in
// pkg/kubelet/images does in the kubelet: the least recently used ones when the image file
// system fills up, as many as necessary, and those that have not been used for too long.
//
// Guarantees:
//   - An image is not removed if a container was created from it, a pod has a lease on
//     it, it is pinned, or the configuration keeps it. This is checked again right
//     before each removal.
//   - A pod that acquires its lease while one of its images is being removed waits for
//     the end of the removal. Images that it finds after that are kept.
//   - Freed space is measured on the file system and not added up, because images
//     share layers.
//   - Image records survive a restart. If they cannot be read, images count as just
//     detected, so that none is removed too early.
//
// Decisions are made by Plan, a pure function. Collector executes them:
//
//	collector, err := imagegc.New(imagegc.Config{Images: client, RecordsFile: "/var/lib/edge/images"})
//	if err != nil {
//		return err
//	}
//	syncer := imagegc.LeasingSyncer{Syncer: podSyncer, Images: collector} // for the pod workers
//	go collector.Run(ctx)
package imagegc
