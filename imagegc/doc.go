// Package imagegc removes unused images: the least recently used ones when the image
// file system fills up, as many as necessary, and those that have not been used for
// too long.
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
// Decisions are made by Plan, a pure function. Collector executes them.
package imagegc
