// Package logrotate rotates the logs of running containers, so that a container that
// writes a lot does not fill the disk. It corresponds to pkg/kubelet/logs of the kubelet.
//
// Guarantees:
//   - No line of a log that is kept is lost or duplicated, whatever the rate at which it
//     is written, and also after a crash at any point.
//   - A log is rotated soon after it has reached its maximum size: the faster it grows,
//     the more often its size is read. Idle logs are watched by inotify and cost nothing.
//   - The log of a running container that is deleted is reopened after MonitorInterval, so that
//     it can be read, and rotated, from then on, also if the whole logs directory was deleted.
//   - Removal comes before rotation, so that a full disk does not prevent it.
//   - Containers that can write to their log directory cannot lead the Rotator out of it:
//     links are not followed, and only regular files are touched.
//
// The names of rotated logs are those of the kubelet with nanoseconds:
// 0.log.20260501-120000.000000000, with .gz from the second newest on. A pure function
// decides what to remove and to compress; Rotator executes it:
//
//	rotator, err := logrotate.New(logrotate.Config{Runtime: client, LogsDir: "/var/log/pods"})
//	if err != nil {
//		return err
//	}
//	return rotator.Run(ctx)
package logrotate
