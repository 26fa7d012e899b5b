// Package containergc removes what pods leave behind: dead containers, empty
// sandboxes, logs. It also keeps the logs of running containers short.
//
// It promises:
//   - The last dead container of each name stays for as long as its pod is wanted,
//     or with KeepNeeded until a newer one runs:
//     it has the exit code that status tells, and planning needs to know that an
//     init container has done its work.
//   - Everything of a pod that is gone goes, within a second of being told.
//   - Removal is paced, so that the runtime has time left to start containers; pods
//     that are gone come first, and whoever is short of disk does not wait.
//   - No line of a log that is to be kept is lost or told twice when the log is
//     rotated, whatever the speed at which it is written, and also after a crash
//     at any point.
//
// Deciding is Plan, a pure function. Collector carries it out; Rotator rotates.
package containergc
