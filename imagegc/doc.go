// Package imagegc removes images that no pod needs: when the disk fills up, the
// least recently used first and no more than it takes, or when they have not
// been used for too long.
//
// It promises:
//   - No image goes that a container was made from, that a pod holds a lease on,
//     that is pinned or that the configuration keeps. This is looked at again
//     right before each removal.
//   - A pod that takes its lease while one of its images is being removed waits
//     until that is over. What it finds after that stays.
//   - What is freed is read from the file system, not added up: images share
//     layers.
//   - Ages survive a restart. When they cannot be read back, images count as
//     just seen: nothing goes too early.
//
// Deciding is Plan, a pure function. Collector does what it says.
package imagegc
