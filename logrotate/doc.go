// Package logrotate rotates the logs of running containers, so that a container that
// writes a lot does not fill the disk.
//
// Guarantees:
//   - No line of a log that is kept is lost or duplicated, whatever the rate at which it
//     is written, and also after a crash at any point.
//   - A log is rotated soon after it has reached its maximum size: the faster it grows,
//     the more often its size is read. Idle logs are watched by inotify and cost nothing.
//   - Removal comes before rotation, so that a full disk does not prevent it.
//   - Containers that can write to their logs directory cannot lead the Rotator out of it:
//     links are not followed, and other than regular files are left alone.
//
// The names of rotated logs are those of the kubelet with nanoseconds:
// 0.log.20260501-120000.000000000, with .gz from the second newest on. What to remove and
// to compress is decided by a pure function; Rotator executes it.
package logrotate
